//! Panics as errors.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Whether panics of this thread are expected.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Does work, and returns the message of a panic as an error. The data it worked on may then be in an inconsistent
/// state.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| message(&*panic))
}

/// The same of a library that panics where data are damaged: nothing is printed.
pub fn catch_expected_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_QUIET.get() {
                print(panic);
            }
        }));
    });
    let before = IS_QUIET.replace(true);
    let result = catch_panic(work);
    IS_QUIET.set(before);
    result
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
        assert_eq!(catch_expected_panic(|| -> () { panic!("{}", IS_QUIET.get()) }), Err("true".into()));
        assert!(!IS_QUIET.get());
    }
}
