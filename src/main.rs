//! The `kvassay` binary: hands the command line to [`kvassay::cli::main`].

fn main() -> std::process::ExitCode {
    kvassay::cli::main()
}
