import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collection;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/**
 * A member of a consumer group that a broker coordinates, by Kafka's own client (0.9 to 4.x).
 *
 * Arguments: bootstrap, group, topics with commas between, then key=value settings. Says "CLAIM nanoseconds partition" for what it is given,
 * "MSG nanoseconds partition offset text" for what it is handed, and "DONE" when it left at the end of its input.
 */
public final class KafkaMember {
    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    /** No form of poll is in all releases. */
    private static Method pollMethod() throws NoSuchMethodException {
        try {
            return KafkaConsumer.class.getMethod("poll", Duration.class);
        } catch (NoSuchMethodException error) { // before 2.0
            return KafkaConsumer.class.getMethod("poll", long.class);
        }
    }

    @SuppressWarnings("unchecked")
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        for (int i = 3; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        Method poll = pollMethod();
        Object patience = poll.getParameterTypes()[0] == long.class ? (Object) 200L : Duration.ofMillis(200);
        AtomicBoolean stopping = new AtomicBoolean();
        Thread input = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (java.io.IOException error) {
                error.printStackTrace();
            }
            stopping.set(true);
        });
        input.setDaemon(true);
        input.start();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(Arrays.asList(arguments[2].split(",")), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) { }

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    for (TopicPartition partition : partitions) {
                        say("CLAIM " + System.nanoTime() + " " + partition.partition());
                    }
                    say("ASSIGNED " + partitions.size());
                }
            });
            while (!stopping.get()) {
                ConsumerRecords<byte[], byte[]> records =
                    (ConsumerRecords<byte[], byte[]>) poll.invoke(consumer, patience);
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    String text = new String(record.value(), StandardCharsets.ISO_8859_1);
                    say("MSG " + System.nanoTime() + " " + record.partition() + " " + record.offset() + " " + text);
                }
                try {
                    consumer.commitSync();
                } catch (CommitFailedException error) {
                    say("AGAIN"); // a rebalance was faster: its messages come again, to the next owner
                }
            }
        }
        say("DONE");
    }
}
