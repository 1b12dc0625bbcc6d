//! Statistics: exact binomial and matched-pair score bounds, exact tests, Holm, bootstrap. Pure functions.
