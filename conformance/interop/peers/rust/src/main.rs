// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//! Signs and verifies envelopes with serde_jcs, ed25519-dalek and bs58: air IN OUT, a line for each. With serve FORM KEY OLDEST
//! it is an inbox until standard input ends, which accepts that form of signatures, and prints its port.

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::error::Error;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::{env, fs, io, thread};
use unicode_normalization::UnicodeNormalization;

fn nfc(v: &mut Value) {
    match v {
        Value::String(s) => *s = s.nfc().collect(),
        Value::Array(a) => a.iter_mut().for_each(nfc),
        Value::Object(o) => o.values_mut().for_each(nfc),
        _ => {}
    }
}

fn unhex(s: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    (0..s.len()).step_by(2).map(|i| Ok(u8::from_str_radix(&s[i..i + 2], 16)?)).collect()
}

fn text<'a>(v: &'a Value, name: &str) -> Result<&'a str, Box<dyn Error>> {
    v[name].as_str().ok_or_else(|| format!("no {name}").into())
}

fn check(case: &Value) -> Result<String, Box<dyn Error>> {
    let mut envelope: Value = serde_json::from_str(text(case, "env")?)?;
    let members = envelope.as_object_mut().ok_or("no object")?;
    let signature = members.remove("signature").ok_or("no signature")?;
    let signature = signature.as_str().ok_or("no text")?.to_owned();
    if text(case, "form")? == "spec" {
        members.insert("signature".into(), Value::Null);
    }
    nfc(&mut envelope);
    let data = match serde_jcs::to_vec(&envelope) {
        Ok(data) => data,
        Err(e) => return Ok(format!("error {e}")),
    };
    let public: [u8; 32] = bs58::decode(&text(case, "pub")?[1..]).into_vec()?[2..].try_into()?;
    let given: [u8; 64] = bs58::decode(&signature[1..]).into_vec()?.as_slice().try_into()?;
    let good = VerifyingKey::from_bytes(&public)?.verify_strict(&data, &Signature::from_bytes(&given)).is_ok();
    let seed: [u8; 32] = unhex(text(case, "seed")?)?.as_slice().try_into()?;
    let own = SigningKey::from_bytes(&seed).sign(&data);
    let sum: String = Sha256::digest(&data).iter().map(|b| format!("{b:02x}")).collect();
    let verdict = if good { "good" } else { "bad" };
    Ok(format!("{sum} {verdict} z{}", bs58::encode(own.to_bytes()).into_string()))
}

/// Checks the signature of an envelope, whose member it removes.
fn verify(envelope: &mut Value, form: &str, key: &str) -> Result<bool, Box<dyn Error>> {
    let members = envelope.as_object_mut().ok_or("no object")?;
    let signature = members.remove("signature").unwrap_or(Value::Null);
    if form == "spec" {
        members.insert("signature".into(), Value::Null);
    }
    let Some(signature) = signature.as_str() else {
        return Ok(false);
    };
    nfc(envelope);
    let public: [u8; 32] = bs58::decode(&key[1..]).into_vec()?[2..].try_into()?;
    let given: [u8; 64] = bs58::decode(&signature[1..]).into_vec()?.as_slice().try_into()?;
    let data = serde_jcs::to_vec(&envelope)?;
    Ok(VerifyingKey::from_bytes(&public)?.verify_strict(&data, &Signature::from_bytes(&given)).is_ok())
}

/// Checks a pushed envelope in the order of 6.2, and returns a status and an error. A timestamp before the
/// oldest one is stale.
fn receive(body: &[u8], form: &str, key: &str, oldest: &str) -> (u16, &'static str) {
    let Ok(mut envelope) = serde_json::from_slice::<Value>(body) else {
        return (400, "Bad Request");
    };
    let at = envelope["timestamp"].as_str().unwrap_or("").to_owned();
    if at.is_empty() || !matches!(envelope["body"]["type"].as_str(), Some("Offer" | "encrypted" | "note")) {
        return (400, "Bad Request");
    }
    if !verify(&mut envelope, form, key).unwrap_or(false) {
        return (401, "Bad Signature");
    }
    if at.as_str() < oldest {
        return (409, "Stale Timestamp");
    }
    (200, "OK")
}

/// Answers the one request of a connection.
fn answer(stream: TcpStream, args: &[String]) -> Result<(), Box<dyn Error>> {
    let mut reader = BufReader::new(&stream);
    let (mut line, mut size, mut is_post) = (String::new(), 0, false);
    while reader.read_line(&mut line)? > 2 {
        let lower = line.to_ascii_lowercase();
        is_post |= lower.starts_with("post ");
        if let Some(n) = lower.strip_prefix("content-length:") {
            size = n.trim().parse()?;
        }
        line.clear();
    }
    let mut body = vec![0; size];
    reader.read_exact(&mut body)?;
    let (status, error) = if is_post { receive(&body, &args[2], &args[3], &args[4]) } else { (501, "no") };
    let text = format!("{{\"error\":\"{error}\"}}");
    let head = "content-type: application/json\r\nconnection: close";
    write!(&stream, "HTTP/1.1 {status} {error}\r\n{head}\r\ncontent-length: {}\r\n\r\n{text}", text.len())?;
    Ok(())
}

fn inbox(args: Vec<String>) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?.port());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if let Err(e) = answer(stream, &args) {
                eprintln!("{e}");
            }
        }
    });
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().collect();
    if args[1] == "serve" {
        return inbox(args);
    }
    let mut out = BufWriter::new(fs::File::create(&args[2])?);
    for line in BufReader::new(fs::File::open(&args[1])?).lines() {
        writeln!(out, "{}", check(&serde_json::from_str(&line?)?)?)?;
    }
    Ok(out.flush()?)
}
