//! Mixtures of experts.

use super::CudaBackend;
use super::product::Finish;
use super::tensor::CudaTensor;
use crate::backend::{BackendError, ExpertWeights, RoutingRule};

/// Which experts rows go to.
pub struct CudaRoutes;

impl CudaRoutes {
    /// Refused.
    pub(super) fn new(_: usize) -> Result<Self, BackendError> {
        Err(BackendError::Unsupported(
            "experts on the CUDA worker".into(),
        ))
    }
}

impl CudaBackend {
    /// See [`crate::backend::Backend::route`].
    pub(super) fn choose_experts(
        &self,
        _: &CudaTensor,
        _: RoutingRule<'_, Self>,
        _: &mut CudaRoutes,
    ) -> Result<(), BackendError> {
        Err(BackendError::Unsupported(
            "experts on the CUDA worker".into(),
        ))
    }

    /// See [`crate::backend::Backend::mix_experts`].
    pub(super) fn mix(
        &self,
        _: &CudaTensor,
        _: ExpertWeights<'_, Self>,
        _: &mut CudaRoutes,
        _: &mut CudaTensor,
        _: Finish,
    ) -> Result<(), BackendError> {
        Err(BackendError::Unsupported(
            "experts on the CUDA worker".into(),
        ))
    }
}
