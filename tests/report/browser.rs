//! The page in headless Chromium, where one is installed: nothing is cut off or overflows on a
//! phone or a wide screen, and nothing is asked of any server.
//!
//! The browser is found through `KVASSAY_CHROMIUM` or by its usual names. A server of this test is
//! its proxy, so every request that it makes for a page is seen.

// What was skipped is said where tests say it.
#![allow(clippy::print_stdout)]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::synthetic::{Synthetic, usual};
use super::{change_document, escaping, page, report};

const NAMES: [&str; 5] = [
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "chrome",
];
/// Widths of a phone, a tablet and two screens, in CSS pixels.
const WIDTHS: [u32; 4] = [390, 768, 1300, 1440];
/// Time after which a browser is ended.
const PATIENCE: Duration = Duration::from_secs(60);
/// Hosts that browsers ask on their own behalf.
const OF_THE_BROWSER: [&str; 4] = ["google.com", "googleapis.com", "gvt1.com", "gstatic.com"];

fn browser() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("KVASSAY_CHROMIUM") {
        return Some(PathBuf::from(path));
    }
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let found = NAMES
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
        .find(|path| path.is_file());
    if found.is_none() {
        println!("skipped: no Chromium is installed and KVASSAY_CHROMIUM names none");
    }
    found
}

/// A page that holds another in frames of every width, and says what it measured.
fn ruler() -> String {
    let frames: String = WIDTHS
        .iter()
        .map(|width| {
            format!("<iframe src=\"/page.html\" width=\"{width}\" height=\"900\"></iframe>")
        })
        .collect();
    let measure = "
        const found = [];
        for (const frame of document.querySelectorAll('iframe')) {
            const inner = frame.contentDocument, root = inner.documentElement;
            for (const open of [false, true]) {
                inner.querySelectorAll('details').forEach(it => { it.open = open; });
                const width = root.clientWidth;
                const beyond = [...inner.body.querySelectorAll('*')].filter(it => {
                    const box = it.getBoundingClientRect(), svg = it.closest('svg');
                    return box.width > 1 && !svg && (box.right > width + 1 || box.left < -1);
                }).map(it => it.tagName + '.' + it.className + ': ' + it.textContent.slice(0, 60));
                const text = [...inner.querySelectorAll('svg text')].filter(it => {
                    const box = it.getBoundingClientRect();
                    return box.width > 0 && (box.right > width || box.left < 0);
                }).map(it => it.textContent);
                found.push({ frame: Number(frame.width), open, width, scroll: root.scrollWidth,
                    beyond: beyond.slice(0, 5), text, height: root.scrollHeight,
                    title: inner.title, scripts: inner.scripts.length,
                    font: getComputedStyle(inner.body).fontFamily });
            }
        }
        document.body.textContent = 'MEASURED' + JSON.stringify(found) + 'END';";
    format!(
        "<!doctype html><link rel=icon href=\"data:,\"><body>{frames}<script>\
         window.onload = () => {{ {measure} }};</script>"
    )
}

/// Answers for `report.test` and refuses the rest; remembers what was asked.
struct Proxy {
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    fn start(page: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        listener.set_nonblocking(true).unwrap();
        let until = Instant::now() + 2 * PATIENCE;
        // The thread ends with its time, or with the process.
        thread::spawn(move || {
            while Instant::now() < until {
                match listener.accept() {
                    Ok((stream, _)) => {
                        let (page, log) = (page.clone(), Arc::clone(&log));
                        thread::spawn(move || serve(stream, &page, &log));
                    }
                    Err(_) => thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        Proxy { address, asked }
    }
}

/// One request, one answer. A browser that goes away is no failure of the page.
fn serve(mut stream: TcpStream, page: &str, log: &Mutex<Vec<String>>) {
    stream.set_nonblocking(false).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let Some(Ok(first)) = lines.next() else {
        return;
    };
    while lines
        .next()
        .is_some_and(|line| line.is_ok_and(|line| !line.is_empty()))
    {}
    let target = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let (status, body) = match target.as_str() {
        "http://report.test/" => ("200 OK", ruler()),
        "http://report.test/page.html" => ("200 OK", page.to_owned()),
        _ => ("404 Not Found", String::new()),
    };
    log.lock().unwrap().push(target);
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    let _ = stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(body.as_bytes()));
}

/// What the browser measured in each frame, closed and open, and what it asked for besides.
fn look(browser: &PathBuf, page: String) -> (Vec<Value>, Vec<String>) {
    let proxy = Proxy::start(page);
    let profile = tempfile::tempdir().unwrap();
    let mut child = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
        ])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
        ])
        .args(["--disable-dev-shm-usage", "--proxy-bypass-list=<-loopback>"])
        .arg(format!("--proxy-server=http://{}", proxy.address))
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args([
            "--window-size=1600,1200",
            "--dump-dom",
            "http://report.test/",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut output = child.stdout.take().unwrap();
    let reader = thread::spawn(move || {
        let mut text = Vec::new();
        std::io::Read::read_to_end(&mut output, &mut text).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    });
    let until = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            child.kill().unwrap();
            panic!("the browser took longer than {PATIENCE:?}");
        }
        thread::sleep(Duration::from_millis(20));
    }
    let text = reader.join().unwrap();
    let measured = text
        .split("MEASURED")
        .nth(1)
        .unwrap_or_else(|| panic!("found {text}"));
    let measured = measured.split("END").next().unwrap().replace("&amp;", "&");
    let measured = measured.replace("&lt;", "<").replace("&gt;", ">");
    let asked = proxy.asked.lock().unwrap().clone();
    let others = asked.into_iter().filter(|target| {
        let own = ["http://report.test/", "http://report.test/page.html"];
        !own.contains(&target.as_str()) && !OF_THE_BROWSER.iter().any(|it| target.contains(it))
    });
    (serde_json::from_str(&measured).unwrap(), others.collect())
}

fn is_too_wide(frame: &Value) -> bool {
    let count = |field: &str| frame[field].as_array().unwrap().len();
    frame["scroll"].as_u64() > frame["width"].as_u64() || count("beyond") + count("text") > 0
}

fn assert_fits(browser: &PathBuf, page: String) {
    let (frames, asked) = look(browser, page);
    assert_eq!(frames.len(), 2 * WIDTHS.len());
    for frame in &frames {
        assert!(!is_too_wide(frame), "{frame:#}");
        assert_eq!(frame["scripts"], 0, "{frame:#}");
        // The page's own style was accepted by its policy.
        assert!(
            frame["font"].as_str().unwrap().contains("Segoe UI"),
            "{frame:#}"
        );
        assert!(
            frame["title"]
                .as_str()
                .unwrap()
                .contains("KV-cache recipes")
        );
        assert!(frame["height"].as_u64() > Some(1000), "{frame:#}");
    }
    assert!(asked.is_empty(), "{asked:?}");
}

#[test]
fn pages_fit_phones_and_wide_screens_and_ask_for_nothing() {
    let Some(browser) = browser() else {
        return;
    };
    let synthetic = Synthetic::new();
    assert_fits(&browser, page(&synthetic.run()));
    escaping::hostile(&synthetic);
    let run = synthetic.run();
    let other = Synthetic::new();
    change_document(other.run().join("run.json"), |manifest| {
        manifest["model"]["name"] = "other".into();
        manifest["model"]["weights_sha256"] = "cd".repeat(32).into();
    });
    let (_, both) = report(&run, &[other.run().to_str().unwrap()]);
    assert_fits(&browser, both);
    let two = Synthetic::with(&["a-control-with-a-long-name-of-a-server", "b"], &usual);
    assert_fits(&browser, page(&two.run()));
}

#[test]
fn the_check_sees_what_it_looks_for() {
    let Some(browser) = browser() else {
        return;
    };
    let wide = "<p style=\"width: 800px\">wide</p><img src=\"http://elsewhere.test/x.png\">";
    let (frames, asked) = look(&browser, wide.to_owned());
    let of = |width: u32| frames.iter().filter(move |frame| frame["frame"] == width);
    assert!(of(390).all(is_too_wide), "{frames:#?}");
    assert!(!of(1440).any(is_too_wide), "{frames:#?}");
    assert!(
        asked.contains(&"http://elsewhere.test/x.png".to_owned()),
        "{asked:?}"
    );
}
