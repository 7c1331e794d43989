import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.locks.ReentrantLock;
import kafka.consumer.Blacklist;
import kafka.consumer.Consumer;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.ConsumerIterator;
import kafka.consumer.KafkaStream;
import kafka.consumer.Whitelist;
import kafka.javaapi.consumer.ConsumerConnector;
import kafka.message.MessageAndMetadata;

/**
 * A member of a consumer group in ZooKeeper, by Kafka's own old consumer (0.8.2 to 1.1), that says what it is handed.
 *
 * Arguments: connect string, group, consumer id, then "topic=streams,..." or "*regex" or "!regex" (one stream), then
 * key=value settings. Says "READY n", then "MSG nanoseconds topic partition offset text" for each message, and "DONE" when
 * it left at the end of its input.
 *
 * A message is said before its stream counts it as consumed: a member that is killed has said everything that it can have
 * committed. To leave, it first stops saying anything.
 */
public final class OldMember {
    /** Held by whoever hands over a message, and for good by who leaves. */
    private static final ReentrantLock HANDOVER = new ReentrantLock();

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static void read(KafkaStream<byte[], byte[]> stream) {
        ConsumerIterator<byte[], byte[]> messages = stream.iterator();
        while (messages.hasNext()) {
            HANDOVER.lock();
            try {
                MessageAndMetadata<byte[], byte[]> message = messages.peek();
                String text = new String(message.message(), StandardCharsets.ISO_8859_1);
                say("MSG " + System.nanoTime() + " " + message.topic() + " " + message.partition() + " "
                        + message.offset() + " " + text);
                messages.next();
            } finally {
                HANDOVER.unlock();
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("zookeeper.connect", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("consumer.id", arguments[2]);
        settings.put("auto.offset.reset", "smallest");
        for (int i = 4; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        ConsumerConnector connector = Consumer.createJavaConsumerConnector(new ConsumerConfig(settings));
        List<KafkaStream<byte[], byte[]>> streams = new ArrayList<>();
        String wanted = arguments[3];
        if (wanted.startsWith("*")) {
            streams.addAll(connector.createMessageStreamsByFilter(new Whitelist(wanted.substring(1)), 1));
        } else if (wanted.startsWith("!")) {
            streams.addAll(connector.createMessageStreamsByFilter(new Blacklist(wanted.substring(1)), 1));
        } else {
            Map<String, Integer> topics = new LinkedHashMap<>();
            for (String entry : wanted.split(",")) {
                String[] pair = entry.split("=");
                topics.put(pair[0], Integer.valueOf(pair[1]));
            }
            connector.createMessageStreams(topics).values().forEach(streams::addAll);
        }
        for (KafkaStream<byte[], byte[]> stream : streams) {
            Thread reader = new Thread(() -> read(stream));
            reader.setDaemon(true);
            reader.start();
        }
        say("READY " + streams.size());
        while (System.in.read() >= 0) {
            // Until whoever started us closes the pipe.
        }
        HANDOVER.lock();
        connector.shutdown();
        say("DONE");
        System.exit(0);
    }
}
