import com.sohu.jafka.consumer.Consumer;
import com.sohu.jafka.consumer.ConsumerConfig;
import com.sohu.jafka.consumer.ConsumerConnector;
import com.sohu.jafka.consumer.MessageStream;
import java.nio.ByteBuffer;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.locks.ReentrantLock;

/**
 * A member of a consumer group that says what it is handed: see tests.support.jafka.JafkaMember.
 *
 * Arguments: connect string, group, consumer id or "-", "topic=streams,...", then key=value settings.
 *
 * A message is said in the decoder, which the stream calls before it moves the offset to commit: a member that is killed
 * has said everything that it can have committed. To leave, it first stops saying anything.
 */
public final class JafkaMember {
    private static final char[] HEX = "0123456789abcdef".toCharArray();

    /** Stream and topic of a reading thread. */
    private static final ThreadLocal<String> STREAM = new ThreadLocal<>();

    /** Held by whoever hands over a message, and for good by who leaves. */
    private static final ReentrantLock HANDOVER = new ReentrantLock();

    private static String hex(ByteBuffer payload) {
        ByteBuffer bytes = payload.duplicate();
        StringBuilder text = new StringBuilder(2 * bytes.remaining());
        while (bytes.hasRemaining()) {
            int value = bytes.get() & 0xff;
            text.append(HEX[value >> 4]).append(HEX[value & 15]);
        }
        return text.toString();
    }

    private static Boolean handOver(ByteBuffer payload) {
        HANDOVER.lock();
        try {
            say("MSG " + System.nanoTime() + " " + STREAM.get() + " " + hex(payload));
        } finally {
            HANDOVER.unlock();
        }
        return Boolean.TRUE;
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static Properties settings(String[] arguments) {
        Properties settings = new Properties();
        settings.put("zk.connect", arguments[0]);
        settings.put("groupid", arguments[1]);
        if (!arguments[2].equals("-")) {
            settings.put("consumerid", arguments[2]);
        }
        settings.put("autooffset.reset", "smallest");
        settings.put("autocommit.interval.ms", "500");
        settings.put("zk.sessiontimeout.ms", "4000");
        settings.put("zk.synctime.ms", "200");
        settings.put("rebalance.backoff.ms", "1000");
        for (int i = 4; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        return settings;
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Integer> topics = new LinkedHashMap<>();
        for (String entry : arguments[3].split(",")) {
            String[] pair = entry.split("=");
            topics.put(pair[0], Integer.valueOf(pair[1]));
        }
        ConsumerConnector connector = Consumer.create(new ConsumerConfig(settings(arguments)));
        Map<String, List<MessageStream<Boolean>>> streams =
                connector.createMessageStreams(topics, message -> handOver(message.payload()));
        int count = 0;
        for (Map.Entry<String, List<MessageStream<Boolean>>> entry : streams.entrySet()) {
            for (MessageStream<Boolean> stream : entry.getValue()) {
                String name = count++ + " " + entry.getKey();
                Thread reader = new Thread(() -> {
                    STREAM.set(name);
                    for (Boolean handedOver : stream) {
                        // All is done in the decoder.
                    }
                });
                reader.setDaemon(true);
                reader.start();
            }
        }
        say("READY " + count);
        while (System.in.read() >= 0) {
            // Until whoever started us closes the pipe.
        }
        HANDOVER.lock();
        connector.close();
        say("DONE");
        System.exit(0);
    }
}
