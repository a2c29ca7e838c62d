//! Words of a text: runs of Unicode letters and digits, in lower case.
//!
//! The same words are found with an index and without one. There are no stems and no stop words.

/// The words of a text, in their order.
pub fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    let runs = text.split(|c: char| !c.is_alphanumeric()).filter(|run| !run.is_empty());
    runs.map(|run| run.chars().flat_map(char::to_lowercase).collect())
}

/// Whether the words of `wanted` stand next to each other in `text`, in their order. No words are nowhere.
pub fn has_phrase(text: &str, wanted: &[String]) -> bool {
    if wanted.is_empty() {
        return false;
    }
    let own: Vec<String> = words(text).collect();
    own.windows(wanted.len()).any(|run| run == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_runs_of_letters_and_digits() {
        let of = |text| words(text).collect::<Vec<_>>();
        assert_eq!(of("Über-Größe, 3,5 kg!"), ["über", "größe", "3", "5", "kg"]);
        assert_eq!(of("日本語 text\0more"), ["日本語", "text", "more"]);
        assert!(of(" .,;!\0").is_empty());
        let phrase = |text| has_phrase("The quick brown fox", &of(text));
        assert!(phrase("quick  BROWN") && !phrase("quick fox") && !phrase("brown quick") && !phrase(""));
    }
}
