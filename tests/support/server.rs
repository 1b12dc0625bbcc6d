//! A loopback HTTP server of our own, which does on purpose what servers do by accident. It stops
//! when it is dropped, and every connection ends by itself after a while.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// Longest silence on a connection.
const PATIENCE: Duration = Duration::from_secs(20);

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    pub path: String,
    pub headers: Vec<(String, String)>,
    /// `null` where there is none.
    pub body: Value,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let found = headers.find(|(other, _)| other.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// One reply.
#[derive(Clone, Debug)]
pub enum Reply {
    /// A status and a body of JSON.
    Json(u16, Value),
    /// A status, headers and a body as they are.
    Raw(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// JSON after a while.
    After(Duration, Value),
    /// The beginning of a body, a long silence, and the end.
    Slow(Duration, Vec<u8>),
    /// The beginning of a body, and then the end of the connection.
    Cut(Vec<u8>),
    /// The end of the connection before any reply.
    Hangup,
}

type Handler = dyn Fn(&Request) -> Reply + Send + Sync;

/// A running server.
pub struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    log: Arc<Mutex<Vec<Request>>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    pub fn start(handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, log) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (flag, requests) = (Arc::clone(&stop), Arc::clone(&log));
        let handler: Arc<Handler> = Arc::new(handler);
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if flag.load(Ordering::SeqCst) {
                    break;
                }
                let (Ok(stream), handler) = (stream, Arc::clone(&handler)) else {
                    continue;
                };
                let (flag, requests) = (Arc::clone(&flag), Arc::clone(&requests));
                thread::spawn(move || serve(&stream, handler.as_ref(), &flag, &requests));
            }
        });
        Server {
            address,
            stop,
            log,
            thread: Some(thread),
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Every request so far.
    pub fn requests(&self) -> Vec<Request> {
        self.log.lock().unwrap().clone()
    }

    /// Requests with a body.
    pub fn posts(&self) -> Vec<Request> {
        let all = self.requests().into_iter();
        all.filter(|request| !request.body.is_null()).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the listener.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(stream: &TcpStream, handler: &Handler, stop: &AtomicBool, log: &Mutex<Vec<Request>>) {
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let _ = stream.set_nodelay(true);
    let mut reader = BufReader::new(stream);
    while !stop.load(Ordering::SeqCst) {
        let Some(request) = read(&mut reader) else {
            return;
        };
        log.lock().unwrap().push(request.clone());
        if write(stream, handler(&request)).is_none() {
            return;
        }
    }
}

fn read(reader: &mut BufReader<&TcpStream>) -> Option<Request> {
    let mut line = String::new();
    if reader.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let path = line.split_whitespace().nth(1)?.to_owned();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':')?;
        headers.push((name.trim().to_owned(), value.trim().to_owned()));
    }
    let mut request = Request {
        path,
        headers,
        body: Value::Null,
    };
    let length = request.header("content-length").map(str::to_owned);
    if let Some(length) = length {
        let mut bytes = vec![0; length.parse().ok()?];
        reader.read_exact(&mut bytes).ok()?;
        request.body = serde_json::from_slice(&bytes).unwrap();
    }
    Some(request)
}

/// Writes a reply; `None` where the connection ends with it.
fn write(mut stream: &TcpStream, reply: Reply) -> Option<()> {
    let mut send = |bytes: &[u8]| stream.write_all(bytes).ok();
    match reply {
        Reply::Json(status, value) => {
            let body = value.to_string();
            send(&head(status, &[], body.len()))?;
            send(body.as_bytes())
        }
        Reply::After(wait, value) => {
            thread::sleep(wait);
            write(stream, Reply::Json(200, value))
        }
        Reply::Raw(status, headers, body) => {
            send(&head(status, &headers, body.len()))?;
            send(&body)
        }
        Reply::Slow(wait, body) => {
            let (first, rest) = body.split_at(body.len() / 2);
            send(&head(200, &[], body.len()))?;
            send(first)?;
            thread::sleep(wait);
            send(rest)
        }
        Reply::Cut(body) => {
            send(&head(200, &[], body.len() + 100))?;
            send(&body)?;
            None
        }
        Reply::Hangup => None,
    }
}

fn head(status: u16, headers: &[(&'static str, String)], length: usize) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {status} status\r\ncontent-length: {length}\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    text.into_bytes()
}
