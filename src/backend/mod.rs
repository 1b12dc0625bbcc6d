//! Arithmetic and cache storage behind the trait that the decoder is generic over.
