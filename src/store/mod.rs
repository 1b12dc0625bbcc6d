//! Run directories: append, sync, lock, resume, atomic replace.
