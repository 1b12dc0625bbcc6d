//! Panels of small and real data.
