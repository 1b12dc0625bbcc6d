//! Frozen, versioned answer parsers and exact-match scoring. Pure.
