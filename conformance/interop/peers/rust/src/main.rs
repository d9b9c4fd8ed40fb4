// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//! Signs and verifies envelopes with serde_jcs, ed25519-dalek and bs58: air IN OUT, a line for each.

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::error::Error;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::{env, fs};
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

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().collect();
    let mut out = BufWriter::new(fs::File::create(&args[2])?);
    for line in BufReader::new(fs::File::open(&args[1])?).lines() {
        writeln!(out, "{}", check(&serde_json::from_str(&line?)?)?)?;
    }
    Ok(out.flush()?)
}
