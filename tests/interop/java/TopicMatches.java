import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.regex.Pattern;

/** Reads lines of a pattern and names, separated by tabs; answers each with a 1 or 0 per name, or ! for no pattern. */
public class TopicMatches {
    public static void main(String[] arguments) throws Exception {
        answer(pattern -> Pattern.compile(pattern).asMatchPredicate());
    }

    /** `compile` throws an IllegalArgumentException for what is no pattern. */
    static void answer(Function<String, Predicate<String>> compile) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] fields = line.split("\t", -1);
            StringBuilder answer = new StringBuilder();
            try {
                Predicate<String> pattern = compile.apply(fields[0]);
                for (int i = 1; i < fields.length; i++) {
                    answer.append(pattern.test(fields[i]) ? '1' : '0');
                }
            } catch (IllegalArgumentException error) {
                answer.append('!');
            }
            out.println(answer);
        }
        out.flush();
    }
}
