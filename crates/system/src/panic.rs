//! Panics as errors.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does work, and returns the message of a panic as an error. The data it worked on may then be in an inconsistent
/// state.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| message(&*panic))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let message = panic.downcast_ref::<&str>().map(ToString::to_string);
    message.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "unknown panic".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_becomes_its_message() {
        assert_eq!(catch_panic(|| 5), Ok(5));
        assert_eq!(catch_panic(|| -> () { panic!("no {}", 5) }), Err("no 5".into()));
        assert_eq!(catch_panic(|| std::panic::panic_any(5)), Err("unknown panic".into()));
    }
}
