//! Shards to documents: inflate, split into lines, extract the wanted text.
