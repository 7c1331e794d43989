import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;

/** Reads lines of a pattern and names, separated by tabs; answers each with a 1 or 0 per name, or ! for no pattern. */
public class TopicMatches {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] fields = line.split("\t", -1);
            StringBuilder answer = new StringBuilder();
            try {
                Pattern pattern = Pattern.compile(fields[0]);
                for (int i = 1; i < fields.length; i++) {
                    answer.append(pattern.matcher(fields[i]).matches() ? '1' : '0');
                }
            } catch (PatternSyntaxException error) {
                answer.append('!');
            }
            out.println(answer);
        }
        out.flush();
    }
}
