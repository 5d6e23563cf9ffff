//! The Python extension module: the only part of the core that knows PyO3.
