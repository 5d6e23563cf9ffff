//! The texts that an evaluation makes, as long as the values in them are looked at.

use std::cell::{Cell, OnceCell};

/// Texts that stay where they are until all of them go.
#[derive(Default)]
pub struct Texts {
    /// Each part is twice as long as the one before it.
    parts: [OnceCell<Vec<OnceCell<String>>>; 32],
    count: Cell<usize>,
}

impl Texts {
    /// Keeps a text.
    pub(super) fn keep(&self, text: String) -> &str {
        let number = self.count.replace(self.count.get() + 1) + 1;
        let part = number.ilog2() as usize;
        let texts = self.parts[part].get_or_init(|| vec![OnceCell::new(); 1 << part]);
        texts[number - (1 << part)].get_or_init(|| text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_stay() {
        let texts = Texts::default();
        let kept: Vec<&str> = (0..1000).map(|number| texts.keep(format!("text {number}"))).collect();
        assert!(kept.iter().enumerate().all(|(number, text)| **text == format!("text {number}")));
    }
}
