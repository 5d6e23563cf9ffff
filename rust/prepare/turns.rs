//! Conversations longer than a row, without their earliest turns.
//!
//! ```text
//! system  user  assistant  user  assistant  tool  assistant  user  assistant
//! |----|                   `--- or from here to the end      `--- or from here
//! kept in any case
//! ```
//!
//! The rest begins with a message of the user, as templates demand, and no result of a tool stands without its call.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};

use super::Sample;
use super::encoding::SampleEncoder;
use crate::encode::Encoder;

/// The most tokens of a sample, and what counts them.
pub struct Fit {
    encoder: SampleEncoder,
    most: usize,
}

impl Fit {
    /// At most `most` tokens; see [`SampleEncoder::new`].
    pub fn new(encoder: &Encoder, long: &Arc<Mutex<()>>, most: usize) -> Self {
        Self { encoder: SampleEncoder::new(encoder, long), most }
    }

    /// Whether a sample fits. It gets its ids, unless it cannot be encoded: then it fits, so that encoding says why.
    pub(super) fn takes(&mut self, sample: &mut Sample, guarded: &[String]) -> bool {
        let mut ids = std::mem::take(&mut sample.ids);
        ids.clear();
        if self.encoder.encode(sample, guarded, &mut ids).is_err() {
            ids.clear();
        }
        sample.ids = ids;
        sample.ids.len() <= self.most
    }

    /// The first of `starts` at which the rest of a conversation fits, and that rest, as `render` renders it; a later one fits
    /// if an earlier one does. None if not even the last rest fits. The error is that of the last rest.
    pub(super) fn first_start(
        &mut self,
        starts: &[usize],
        guarded: &[String],
        mut render: impl FnMut(usize) -> Result<Sample, String>,
    ) -> Result<Option<(usize, Sample)>, String> {
        let (mut found, mut failed) = (None, Ok(None));
        let (mut first, mut end) = (0, starts.len());
        while first < end {
            let middle = usize::midpoint(first, end);
            let rest = render(starts[middle]).map(|mut rest| self.takes(&mut rest, guarded).then_some(rest));
            if let Ok(Some(rest)) = rest {
                (found, end) = (Some((starts[middle], rest)), middle);
            } else {
                (failed, first) = (rest.map(|_| None), middle + 1);
            }
        }
        if found.is_some() { Ok(found) } else { failed }
    }
}

/// How many messages stand in front of the turns.
pub(super) fn count_system(roles: &[Cow<'_, str>]) -> usize {
    roles.iter().take_while(|role| matches!(role.as_ref(), "system" | "developer")).count()
}

/// The messages with which the rest of a conversation may begin behind its first `system` ones, without all of it.
pub(super) fn starts(roles: &[Cow<'_, str>], system: usize) -> Vec<usize> {
    (system + 1..roles.len()).filter(|&message| roles[message] == "user").collect()
}
