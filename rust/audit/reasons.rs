//! Records that cannot be used, by reasons that are alike.

use std::collections::{BTreeMap, HashMap};

use super::LISTED;
use crate::prompts::{Left, Reason};

/// Kinds of reasons that are told apart; the others are counted together.
const MOST: usize = 100;
const OTHERS: &str = "other reasons";
/// The characters of a reason that are compared.
const LONGEST: usize = 300;

/// For each kind how many records there are, and the first of them.
#[derive(Debug, Default)]
pub(super) struct Reasons(HashMap<String, (u64, Vec<Left>)>);

impl Reasons {
    pub(super) fn add(&mut self, left: Left) {
        let kind = match &left.reason {
            Reason::Bad(reason) | Reason::Lost(reason) => kind_of(reason),
            Reason::Overlong(_) => return,
        };
        self.add_all(kind, 1, vec![left]);
    }

    pub(super) fn join(&mut self, other: Self) {
        // Sorted, so that the kinds that are told apart do not depend on the order of a hash map.
        for (kind, (count, first)) in BTreeMap::from_iter(other.0) {
            self.add_all(kind, count, first);
        }
    }

    fn add_all(&mut self, kind: String, count: u64, first: Vec<Left>) {
        let is_told_apart = self.0.contains_key(&kind) || self.0.len() < MOST;
        let kind = if is_told_apart { kind } else { OTHERS.to_owned() };
        let (all, listed) = self.0.entry(kind).or_default();
        *all += count;
        listed.extend(first.into_iter().take(LISTED - listed.len()));
    }

    /// All kinds, from that of most records on.
    pub(super) fn most_first(self) -> Vec<(String, u64, Vec<Left>)> {
        let mut all: Vec<_> = self.0.into_iter().map(|(kind, (count, first))| (kind, count, first)).collect();
        all.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        all
    }
}

/// A reason without its numbers, which differ from record to record.
fn kind_of(reason: &str) -> String {
    let mut kind = String::new();
    for character in reason.chars().take(LONGEST) {
        if !character.is_ascii_digit() {
            kind.push(character);
        } else if !kind.ends_with('#') {
            kind.push('#');
        }
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Position;

    fn bad(record: u64, reason: &str) -> Left {
        Left::at(0, Position { record, byte: 0 }, Reason::Bad(reason.to_owned()))
    }

    #[test]
    fn reasons_are_alike_but_for_their_numbers() {
        let mut reasons = Reasons::default();
        for record in 0..20 {
            reasons.add(bad(record, &format!("messages[{record}]: found {}", record * 10)));
        }
        reasons.add(bad(20, "no messages"));
        let found = reasons.most_first();
        let kinds: Vec<_> = found.iter().map(|(kind, count, first)| (&**kind, *count, first.len())).collect();
        assert_eq!(kinds, [("messages[#]: found #", 20, LISTED), ("no messages", 1, 1)]);
        assert_eq!(
            found[0].2.iter().map(|left| left.record).collect::<Vec<_>>(),
            (0..5).map(Some).collect::<Vec<_>>()
        );
    }

    #[test]
    fn kinds_are_bounded() {
        let mut all = Reasons::default();
        for part in 0..3 {
            let mut reasons = Reasons::default();
            for number in 0..60 {
                reasons.add(bad(number, &"a".repeat(part * 60 + number as usize + 1)));
            }
            all.join(reasons);
        }
        let found = all.most_first();
        assert_eq!(found.len(), MOST + 1);
        assert_eq!((&*found[0].0, found[0].1), (OTHERS, 80));
        assert_eq!(found.iter().map(|(_, count, _)| count).sum::<u64>(), 180);
    }
}
