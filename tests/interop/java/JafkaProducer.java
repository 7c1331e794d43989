import com.sohu.jafka.producer.Producer;
import com.sohu.jafka.producer.ProducerConfig;
import com.sohu.jafka.producer.ProducerData;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;

/**
 * Jafka's synchronous producer, driven by its standard input: see tests.support.jafka.JafkaProducer.
 *
 * Arguments: connect string, topic, then key=value settings. A line is a key, for which Jafka takes the partition of
 * that number, and payloads in hexadecimal, which become one request; `SENT n` follows when it was written.
 */
public final class JafkaProducer {
    private static byte[] bytes(String hex) {
        byte[] bytes = new byte[hex.length() / 2];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return bytes;
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("zk.connect", arguments[0]);
        settings.put("serializer.class", "com.sohu.jafka.producer.serializer.DefaultEncoders");
        for (int i = 2; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        Producer<Integer, byte[]> producer = new Producer<>(new ProducerConfig(settings));
        System.out.println("READY");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        int count = 0;
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", -1);
            List<byte[]> payloads = new ArrayList<>();
            for (int i = 1; i < words.length; i++) {
                payloads.add(bytes(words[i]));
            }
            producer.send(new ProducerData<>(arguments[1], Integer.valueOf(words[0]), payloads));
            System.out.println("SENT " + ++count);
        }
        producer.close();
        System.out.println("DONE");
        System.exit(0);
    }
}
