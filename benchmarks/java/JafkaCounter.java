import com.sohu.jafka.consumer.Consumer;
import com.sohu.jafka.consumer.ConsumerConfig;
import com.sohu.jafka.consumer.ConsumerConnector;
import com.sohu.jafka.consumer.MessageStream;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;

/**
 * A consumer of one topic that counts messages and does nothing else with them: see benchmarks.jvm.
 *
 * Arguments: connect string, group, topic, number of streams, then key=value settings.
 *
 * Prints READY when it has joined, FIRST and the time in milliseconds with the first message. At the end of its standard
 * input it commits, leaves the group and prints DONE and the number of messages.
 */
public final class JafkaCounter {
    private static final AtomicLong FIRST = new AtomicLong();
    private static final AtomicLong COUNTED = new AtomicLong();

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static void count(MessageStream<Boolean> stream) {
        long counted = 0;
        for (Boolean message : stream) {
            if (counted++ == 0 && FIRST.compareAndSet(0, System.currentTimeMillis())) {
                say("FIRST " + FIRST.get());
            }
            if ((counted & 1023) == 0) {
                COUNTED.addAndGet(1024);
            }
        }
        COUNTED.addAndGet(counted & 1023);
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("zk.connect", arguments[0]);
        settings.put("groupid", arguments[1]);
        for (int i = 4; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        ConsumerConnector connector = Consumer.create(new ConsumerConfig(settings));
        Map<String, List<MessageStream<Boolean>>> streams = connector.createMessageStreams(
                Map.of(arguments[2], Integer.valueOf(arguments[3])), message -> Boolean.TRUE);
        List<Thread> readers = streams.get(arguments[2]).stream().map(it -> new Thread(() -> count(it))).toList();
        readers.forEach(Thread::start);
        say("READY");
        while (System.in.read() >= 0) {
            // Until the parent process closes the pipe.
        }
        connector.close();
        for (Thread reader : readers) {
            reader.join(5000);
        }
        say("DONE " + COUNTED.get());
        System.exit(0);
    }
}
