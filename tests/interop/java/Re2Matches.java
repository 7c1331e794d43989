import com.google.re2j.Pattern;
import com.google.re2j.PatternSyntaxException;
import java.util.function.Predicate;

/** As TopicMatches, with the RE2 of brokers. */
public class Re2Matches {
    public static void main(String[] arguments) throws Exception {
        TopicMatches.answer(Re2Matches::compile);
    }

    private static Predicate<String> compile(String pattern) {
        try {
            return Pattern.compile(pattern)::matches;
        } catch (PatternSyntaxException error) {
            throw new IllegalArgumentException(error);
        }
    }
}
