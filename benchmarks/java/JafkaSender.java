import com.sohu.jafka.message.ByteBufferMessageSet;
import com.sohu.jafka.message.CompressionCodec;
import com.sohu.jafka.message.Message;
import com.sohu.jafka.producer.SyncProducer;
import com.sohu.jafka.producer.SyncProducerConfig;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Properties;

/**
 * A synchronous producer that sends the same messages again and again: see benchmarks.jvm.
 *
 * Arguments: host, port, topic, a file with the payloads of one request, the size of each, then key=value settings.
 *
 * Prints READY when it has connected and sent one request. Each line of its standard input is a number of requests: it
 * makes the messages of each from the payloads again, sends it to partition 0, and prints SENT after the last one. It
 * ends with its standard input.
 */
public final class JafkaSender {
    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    /** Requests that are made before the first is sent, so that the JVM has compiled what makes them. */
    private static final int WARM_UP = 3000;

    private static ByteBufferMessageSet set(byte[][] payloads) {
        Message[] messages = new Message[payloads.length];
        for (int i = 0; i < payloads.length; i++) {
            messages[i] = new Message(payloads[i]);
        }
        return new ByteBufferMessageSet(CompressionCodec.NoCompressionCodec, messages);
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("host", arguments[0]);
        settings.put("port", arguments[1]);
        for (int i = 5; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        byte[] all = Files.readAllBytes(Path.of(arguments[3]));
        int size = Integer.parseInt(arguments[4]);
        byte[][] payloads = new byte[all.length / size][];
        for (int i = 0; i < payloads.length; i++) {
            payloads[i] = Arrays.copyOfRange(all, i * size, (i + 1) * size);
        }
        SyncProducer producer = new SyncProducer(new SyncProducerConfig(settings));
        for (int i = 0; i < WARM_UP; i++) {
            set(payloads);
        }
        producer.send(arguments[2], 0, set(payloads));
        say("READY");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            int requests = Integer.parseInt(line);
            for (int i = 0; i < requests; i++) {
                producer.send(arguments[2], 0, set(payloads));
            }
            say("SENT");
        }
        producer.close();
        System.exit(0);
    }
}
