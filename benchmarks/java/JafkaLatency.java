import com.sohu.jafka.consumer.Consumer;
import com.sohu.jafka.consumer.ConsumerConfig;
import com.sohu.jafka.consumer.ConsumerConnector;
import com.sohu.jafka.consumer.MessageStream;
import java.io.FileWriter;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;

/**
 * A consumer of one topic that says how old messages are: what benchmarks.latency_clients says of others.
 *
 * Arguments: connect string, group, topic, the file of reports, the quantiles with commas between them, then key=value
 * settings. On Linux System.nanoTime is the clock that messages carry. Ends with its standard input.
 */
public final class JafkaLatency {
    private static final Map<Integer, long[]> AGES = new HashMap<>();
    private static final Map<Integer, Integer> COUNTS = new HashMap<>();
    private static double[] quantiles;
    private static String reports;

    private static synchronized Boolean take(ByteBuffer payload) {
        long now = System.nanoTime();
        ByteBuffer bytes = payload.duplicate();
        int run = bytes.get() & 0xff;
        int total = bytes.getInt();
        long age = now - bytes.getLong();
        if (total == 0) {
            return Boolean.TRUE;
        }
        int count = COUNTS.merge(run, 1, Integer::sum);
        AGES.computeIfAbsent(run, it -> new long[total])[count - 1] = age;
        if (count == total) {
            COUNTS.remove(run);
            report(run, AGES.remove(run));
        }
        return Boolean.TRUE;
    }

    private static void report(int run, long[] ages) {
        Arrays.sort(ages);
        StringBuilder text = new StringBuilder("{\"run\": " + run + ", \"quantiles\": [");
        for (int i = 0; i < quantiles.length; i++) {
            int rank = Math.max(0, (int) Math.ceil(quantiles[i] * ages.length) - 1);
            text.append(i == 0 ? "" : ", ").append(ages[rank] / 1e6);
        }
        try (FileWriter file = new FileWriter(reports, true)) {
            file.write(text + "], \"messages\": " + ages.length + "}\n");
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    private static void read(MessageStream<Boolean> stream) {
        for (Boolean message : stream) {
            // The decoder has taken it.
        }
    }

    public static void main(String[] arguments) throws Exception {
        reports = arguments[3];
        quantiles = Arrays.stream(arguments[4].split(",")).mapToDouble(Double::parseDouble).toArray();
        Properties settings = new Properties();
        settings.put("zk.connect", arguments[0]);
        settings.put("groupid", arguments[1]);
        for (int i = 5; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        ConsumerConnector connector = Consumer.create(new ConsumerConfig(settings));
        Map<String, List<MessageStream<Boolean>>> streams = connector.createMessageStreams(
                Map.of(arguments[2], 1), message -> take(message.payload()));
        streams.get(arguments[2]).forEach(it -> new Thread(() -> read(it)).start());
        while (System.in.read() >= 0) {
            // Until the parent process closes the pipe.
        }
        System.exit(0);
    }
}
