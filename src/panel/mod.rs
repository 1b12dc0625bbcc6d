//! Panels: build, prompt, and the runner.
