//! The order of a window's rows in which each step's share of a lane costs nearly the same.
//!
//! ```text
//! rows by cost      9 8 7 | 6 5 5 | 4 3 1       three rows in a share: as many strata, from the costliest on
//! shares            9 5 4   8 5 3   7 6 1       one row of each stratum: the first ones fall, the next ones rise
//! ```
//!
//! A stratum has the same index in all shares. So any rows that follow one another, as many as a share has, are one of each
//! stratum, wherever in a step the window begins.

/// The cost of a row: the sum over its segments of `linear` · n + `quadratic` · n², of n tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowCost {
    /// The cost of a token.
    pub linear: f64,
    /// The cost of a pair of tokens of one segment.
    pub quadratic: f64,
}

impl RowCost {
    /// The cost of a row with segments of so many tokens.
    pub fn of(&self, segments: impl Iterator<Item = usize>) -> f64 {
        segments.map(|tokens| (self.linear + self.quadratic * tokens as f64) * tokens as f64).sum()
    }
}

/// The order of rows with these costs, of which a step has so many.
pub fn order(costs: &[f64], share: usize) -> Vec<usize> {
    let mut sorted: Vec<usize> = (0..costs.len()).collect();
    let shares = costs.len() / share.max(1);
    if share < 2 || shares < 2 {
        return sorted;
    }
    sorted.sort_by(|one, other| costs[*other].total_cmp(&costs[*one]).then(one.cmp(other)));
    // The rows of the last step that is not full: those of usual cost.
    let rest = costs.len() - shares * share;
    let middle = (costs.len() - rest) / 2;
    let mut last: Vec<usize> = sorted.drain(middle..middle + rest).collect();
    let in_share = |number: usize| -> Vec<usize> {
        let of_stratum =
            |stratum: usize| if stratum.is_multiple_of(2) { number } else { shares - 1 - number };
        (0..share).map(|stratum| sorted[stratum * shares + of_stratum(stratum)]).collect()
    };
    let mut all: Vec<Vec<usize>> = (0..shares).map(in_share).collect();
    // Near the order of the stream.
    all.sort_by_key(|rows| rows.iter().min().copied());
    last.sort_unstable();
    all.into_iter().flatten().chain(last).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn cost_is_of_segments() {
        let cost = RowCost { linear: 2.0, quadratic: 0.5 };
        assert!((cost.of([4, 2].into_iter()) - (8.0 + 8.0 + 4.0 + 2.0)).abs() < 1e-9);
    }

    #[test]
    fn shares_have_one_row_of_each_stratum() {
        let costs = [9.0, 8.0, 7.0, 6.0, 5.5, 5.0, 4.0, 3.0, 1.0];
        assert_eq!(order(&costs, 3), [0, 5, 6, 1, 4, 7, 2, 3, 8]);
        assert_eq!(order(&costs, 1), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(
            order(&costs, 5),
            [0, 1, 2, 3, 4, 5, 6, 7, 8],
            "one share has nothing to be balanced with"
        );
    }

    proptest! {
        #[test]
        fn every_row_comes_once(costs in prop::collection::vec(0.0..100.0, 0..60), share in 1usize..9) {
            let mut found = order(&costs, share);
            found.sort_unstable();
            prop_assert_eq!(found, (0..costs.len()).collect::<Vec<_>>());
        }

        #[test]
        fn shares_differ_by_less_than_the_strata_do(
            costs in prop::collection::vec(0.0..100.0, 16..80),
            share in 2usize..6,
        ) {
            let rows = order(&costs, share);
            let sums: Vec<f64> =
                rows.chunks_exact(share).map(|rows| rows.iter().map(|row| costs[*row]).sum()).collect();
            let largest = sums.iter().copied().fold(f64::MIN, f64::max);
            let smallest = sums.iter().copied().fold(f64::MAX, f64::min);
            let range = costs.iter().copied().fold(f64::MIN, f64::max) - costs.iter().copied().fold(f64::MAX, f64::min);
            prop_assert!(largest - smallest <= range + 1e-9);
        }
    }
}
