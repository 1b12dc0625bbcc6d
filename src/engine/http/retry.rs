//! When a request is tried again, and after which wait.

use std::time::{Duration, SystemTime};

/// Longest wait that a server may ask for with `Retry-After`.
const LONGEST_ASKED: Duration = Duration::from_secs(600);

/// Attempts and waits between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts at one request, at least 1.
    pub attempts: u32,
    /// Wait after the first failure; doubled after each one.
    pub first_wait: Duration,
    /// Longest wait that is not asked for by the server.
    pub longest_wait: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy {
            attempts: 7,
            first_wait: Duration::from_millis(250),
            longest_wait: Duration::from_secs(30),
        }
    }
}

impl RetryPolicy {
    /// Wait after failed attempt number `attempt` (from 1): the doubled one with up to half of it
    /// taken off at random (`jitter` in 0..1), so that requests which failed together do not come
    /// back together; what the server asked for where it did, and some jitter behind it.
    pub(super) fn wait(&self, attempt: u32, asked: Option<Duration>, jitter: f64) -> Duration {
        let jitter = jitter.clamp(0.0, 1.0);
        if let Some(asked) = asked {
            return asked.min(LONGEST_ASKED) + self.first_wait.mul_f64(jitter);
        }
        let doublings = attempt.saturating_sub(1).min(20);
        let whole = self.first_wait.saturating_mul(1 << doublings);
        whole.min(self.longest_wait).mul_f64(1.0 - jitter / 2.0)
    }
}

/// Whether a status says that the same request may succeed later.
pub(super) fn is_retryable(status: u16) -> bool {
    status == 429 || (500..600).contains(&status) && status != 501 && status != 505
}

/// Whether it says that the server, or who stands before it, cannot answer now: not that it has nothing there.
pub(super) fn is_busy(status: u16) -> bool {
    matches!(status, 429 | 502..=504)
}

/// The wait that a `Retry-After` header asks for: seconds or a date.
pub(super) fn retry_after(header: &str, now: SystemTime) -> Option<Duration> {
    let header = header.trim();
    if let Ok(seconds) = header.parse::<u32>() {
        return Some(Duration::from_secs(u64::from(seconds)));
    }
    let date = httpdate::parse_http_date(header).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_server_has_not_said_that_it_has_nothing() {
        for status in [429, 502, 503, 504] {
            assert!(is_busy(status) && is_retryable(status), "{status}");
        }
        for status in [400, 401, 403, 404, 405, 500, 501] {
            assert!(!is_busy(status), "{status}");
        }
    }

    #[test]
    fn waits_double_up_to_the_longest_and_honour_what_is_asked() {
        let policy = RetryPolicy {
            attempts: 9,
            first_wait: Duration::from_millis(100),
            longest_wait: Duration::from_secs(1),
        };
        let ms = |attempt, jitter| policy.wait(attempt, None, jitter).as_millis();
        assert_eq!([ms(1, 0.0), ms(2, 0.0), ms(4, 0.0)], [100, 200, 800]);
        assert_eq!([ms(5, 0.0), ms(60, 0.0), ms(60, 1.0)], [1000, 1000, 500]);
        let asked = policy.wait(1, Some(Duration::from_secs(7)), 0.5);
        assert_eq!(asked.as_millis(), 7050);
        let hours = policy.wait(1, Some(Duration::from_secs(9999)), 0.0);
        assert_eq!(hours, LONGEST_ASKED);
    }

    #[test]
    fn only_overload_and_failures_of_the_server_are_tried_again() {
        let again: Vec<u16> = (200..600).filter(|&status| is_retryable(status)).collect();
        assert_eq!(again[..3], [429, 500, 502]);
        assert!(!is_retryable(501) && !is_retryable(400) && !is_retryable(404));
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        assert_eq!(retry_after(" 3", now), Some(Duration::from_secs(3)));
        let date = "Sun, 06 Nov 1994 08:49:47 GMT";
        assert_eq!(retry_after(date, now), Some(Duration::from_secs(10)));
        let past = "Sun, 06 Nov 1994 08:49:07 GMT";
        assert_eq!(retry_after(past, now), Some(Duration::ZERO));
        for wrong in ["-1", "soon", "", "1e9"] {
            assert_eq!(retry_after(wrong, now), None, "{wrong}");
        }
    }
}
