import com.google.re2j.Pattern;
import com.google.re2j.PatternSyntaxException;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/** As TopicMatches, with the RE2 of brokers. */
public class Re2Matches {
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
