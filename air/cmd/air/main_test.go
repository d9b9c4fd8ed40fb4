// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/air/relay"
	"github.com/fivewire/fivewire/air/transcript"
	"github.com/fivewire/fivewire/internal/command"
	"github.com/fivewire/fivewire/internal/command/commandtest"
	"github.com/fivewire/fivewire/internal/testkit"
)

// do runs the command with an input.
func do(t *testing.T, in string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	return commandtest.Do(t, program, in, args...)
}

// must runs the command, which succeeds, and returns its output.
func must(t *testing.T, in string, args ...string) string {
	t.Helper()
	status, stdout, stderr := do(t, in, args...)
	require.Equal(t, command.Done, status, stderr)
	return stdout
}

// makeKeyFile makes an identity and returns its file and public key.
func makeKeyFile(t *testing.T, airID string) (file, public string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), airID+".json")
	out := must(t, "", "key", "-o", "json", "-did", airtest.DID(airID), file)
	var made struct{ DID, PublicKeyMultibase string }
	require.NoError(t, json.Unmarshal([]byte(out), &made))
	require.Equal(t, airtest.DID(airID), made.DID)
	require.Equal(t, out, must(t, "", "key", "-o", "json", file))
	return file, made.PublicKeyMultibase
}

const (
	alice = "AIR-A11C-E000-0001"
	bob   = "AIR-B0B0-0000-0002"
)

func TestSealSignVerifyOpen(t *testing.T) {
	aliceKey, alicePublic := makeKeyFile(t, alice)
	bobKey, bobPublic := makeKeyFile(t, bob)
	envelope := `{"id":"018fde3a-1234-7abc-8def-aabbccddeeff","from":"` + airtest.DID(alice) + `","to":"` + airtest.DID(bob) +
		`","timestamp":"2026-05-28T09:00:00.000Z","thread_id":"018fde3a-5678-7abc-9012-aabbccddeeff","nonce":"r4nd0mN0nc3-abc123xyz789",` +
		`"body":{"type":"note","text":"a page"}}`
	marked := strings.Replace(envelope, "a page", "<a & b>", 1)
	require.Equal(t, must(t, marked, "sign", "-key", aliceKey), must(t, marked, "sign", "-key", aliceKey, "-o", "json"), "the canonical form")
	sealed := must(t, envelope, "seal", "-public", bobPublic)
	require.NotContains(t, sealed, "a page")
	signed := must(t, sealed, "sign", "-key", aliceKey)
	require.Contains(t, must(t, signed, "verify", "-public", alicePublic), "signed in form spec")
	require.JSONEq(t, `{"type":"note","text":"a page"}`, must(t, signed, "open", "-key", bobKey))

	document := filepath.Join(t.TempDir(), "alice.json")
	key, err := air.ParsePublicKey(alicePublic)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(document, airtest.Document(airtest.DID(alice), key.String(), ""), 0o600))
	must(t, signed, "verify", "-document", document)

	for _, tt := range []struct {
		name, in, stderr string
		args             []string
		status           int
	}{
		{"another key", signed, "signature", []string{"verify", "-public", bobPublic}, command.Failed},
		{"a changed envelope", strings.Replace(signed, alice, "AIR-A11C-E000-0009", 1), "signature", []string{"verify", "-public", alicePublic}, command.Failed},
		{"signed with a time without milliseconds", strings.Replace(envelope, ".000Z", "Z", 1), "timestamp", []string{"sign", "-key", aliceKey}, command.Failed},
		{"signed without a nonce", strings.Replace(envelope, `"nonce"`, `"once"`, 1), "nonce", []string{"sign", "-key", aliceKey}, command.Failed},
		{"too long with its signature", strings.Replace(envelope, "a page", strings.Repeat("x", 65536-len(envelope)), 1), "too_large", []string{"sign", "-key", aliceKey}, command.Failed},
		{"signed twice", signed, "signature", []string{"sign", "-key", aliceKey}, command.Failed},
		{"sealed for another", signed, "open", []string{"open", "-key", aliceKey}, command.Failed},
		{"sealed after signing", signed, "signature", []string{"seal", "-public", bobPublic}, command.Failed},
		{"no key", envelope, "-key is missing", []string{"sign"}, command.NotDone},
		{"no file", envelope, "no such file", []string{"sign", "-key", "none.json"}, command.NotDone},
		{"a file that exists", "", "exists", []string{"key", "-did", airtest.DID(alice), aliceKey}, command.NotDone},
		{"no DID", "", "-did", []string{"key", "-did", "alice", "new.json"}, command.NotDone},
		{"no registry", signed, "registry", []string{"verify", "-registry", "http://" + testkit.FreeAddress(t), "-allow-local"}, command.NotDone},
		{"no public key", envelope, "-public", []string{"seal", "-public", "z6"}, command.NotDone},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, stdout, stderr := do(t, tt.in, tt.args...)
			require.Equal(t, tt.status, status, stdout+stderr)
			require.Contains(t, stderr, tt.stderr)
			require.Empty(t, stdout)
		})
	}
}

// Each published envelope is signed as its author signed it, and verified.
func TestPublishedVectors(t *testing.T) {
	data, err := os.ReadFile("../../../conformance/testdata/air/published-signing.json")
	require.NoError(t, err)
	var suite struct {
		Cases []struct {
			ID string
			In struct{ Envelope, SeedHex, Form string }

			Want struct{ Signature, PublicKey string }
		}
	}
	require.NoError(t, json.Unmarshal(data, &suite))
	require.GreaterOrEqual(t, len(suite.Cases), 20)
	for _, c := range suite.Cases {
		seed, err := hex.DecodeString(c.In.SeedHex)
		require.NoError(t, err)
		id, err := air.NewIdentity(airtest.DID(alice), seed)
		require.NoError(t, err)
		file := filepath.Join(t.TempDir(), "key.json")
		require.NoError(t, air.SaveIdentity(file, id))
		signed := must(t, c.In.Envelope, "sign", "-key", file, "-form", c.In.Form, "-profile", "deployed")
		require.Contains(t, signed, c.Want.Signature, c.ID)
		must(t, signed, "verify", "-public", c.Want.PublicKey, "-profile", "deployed")
	}
}

// A message goes through a relay, sealed, and a wrong recipient is refused.
func TestSendAndPull(t *testing.T) {
	network, err := airtest.NewNetwork(nil)
	require.NoError(t, err)
	defer network.Close()
	files := make(map[string]string)
	for _, airID := range []string{alice, bob} {
		id, err := network.RegisterAgent(airID)
		require.NoError(t, err)
		files[airID] = filepath.Join(t.TempDir(), airID)
		require.NoError(t, air.SaveIdentity(files[airID], id))
	}
	here := []string{"-registry", network.RegistryURL, "-allow-local"}
	body := `{"type":"note","text":"a page"}`
	sent := must(t, body, append([]string{"send", "-key", files[alice], "-seal", "-o", "json"}, append(here, airtest.DID(bob))...)...)
	require.Contains(t, sent, `"status":20`)
	pulled := must(t, "", append([]string{"pull", "-key", files[bob], "-once", "-o", "json"}, here...)...)
	require.Contains(t, pulled, `"isSealed":true,"body":{"text":"a page","type":"note"}`)
	require.Empty(t, must(t, "", append([]string{"pull", "-key", files[bob], "-once"}, here...)...), "it was acknowledged")
	must(t, `{"type":"note x from y\n\u001b[2J"}`, append([]string{"send", "-key", files[alice], "-seal"}, append(here, airtest.DID(bob))...)...)
	pulled = must(t, "", append([]string{"pull", "-key", files[bob], "-once"}, here...)...)
	require.True(t, strings.HasPrefix(pulled, `"note x from y\n\x1b[2J" `), pulled)
	require.Equal(t, 1, strings.Count(pulled, "\n"), "a line for each envelope")

	probed := append([]string{"probe", "-key", files[alice], "-bodies", "note,text"}, here...)
	require.Contains(t, must(t, "", append(probed, airtest.DID(bob))...), "relay at "+network.RelayURL)
	require.Empty(t, must(t, "", append([]string{"pull", "-key", files[bob], "-once"}, here...)...), "a probe leaves nothing")
	status, stdout, _ := do(t, `{"a":1.5}`, "probe", "-envelope", "-")
	require.Equal(t, command.Failed, status)
	require.Contains(t, stdout, "float_forbidden")

	status, _, stderr := do(t, body, append([]string{"send", "-key", files[alice], "-timeout", "1s"}, append(here, airtest.DID("AIR-N0NE-0000-0003"))...)...)
	require.Equal(t, command.Failed, status, stderr)
}

// Mail over five minutes old stays at the relay until a pull accepts its age. A pull prints an answer to a message that its
// process has not seen.
func TestPullOfOldMail(t *testing.T) {
	network, id, file := newAgent(t, nil)
	seed := bytes.Repeat([]byte{7}, ed25519.SeedSize)
	sender, err := air.NewIdentity(airtest.DID(alice), seed)
	require.NoError(t, err)
	network.Registry.Register(sender, network.RelayURL)
	e, err := air.NewEnvelope(&air.Draft{ID: air.NewID(), ThreadID: air.NewID(), From: sender.DID(), To: id.DID(), Time: time.Now().Add(-24 * time.Hour),
		Body: &air.Decline{}, InReplyTo: air.NewID()}, ed25519.NewKeyFromSeed(seed), nil)
	require.NoError(t, err)
	resp, err := http.Post(network.RelayURL+"/inbox/"+bob, "application/json", bytes.NewReader(e.Bytes()))
	require.NoError(t, err)
	require.Equal(t, 202, resp.StatusCode)
	require.NoError(t, resp.Body.Close())
	pull := func(flags ...string) (stdout, stderr string) {
		args := append([]string{"pull", "-key", file, "-once", "-registry", network.RegistryURL, "-allow-local"}, flags...)
		status, stdout, stderr := do(t, "", args...)
		require.Zero(t, status, stderr)
		return stdout, stderr
	}
	for _, flags := range [][]string{nil, {"-max-age", "23h"}, nil} {
		stdout, stderr := pull(flags...)
		require.Empty(t, stdout)
		require.Contains(t, stderr, "stale_timestamp")
	}
	stdout, _ := pull("-max-age", "25h")
	require.Contains(t, stdout, "Decline")
	stdout, stderr := pull("-max-age", "25h")
	require.Empty(t, stdout+stderr, "it was acknowledged")
	status, _, stderr := do(t, "", "pull", "-key", file, "-once", "-max-age", "721h", "-registry", network.RegistryURL, "-allow-local")
	require.Equal(t, command.NotDone, status)
	require.Contains(t, stderr, "30 days")
}

// newAgent returns a network with the agent bob, and the file of its identity.
func newAgent(t *testing.T, opts *airtest.Options) (network *airtest.Network, id *air.Identity, file string) {
	t.Helper()
	network, err := airtest.NewNetwork(opts)
	require.NoError(t, err)
	t.Cleanup(network.Close)
	id, err = network.RegisterAgent(bob)
	require.NoError(t, err)
	file = filepath.Join(t.TempDir(), "bob.json")
	require.NoError(t, air.SaveIdentity(file, id))
	return network, id, file
}

// A pull empties a mailbox that has more envelopes than a poll fetches.
func TestPullEmptiesFullMailbox(t *testing.T) {
	network, id, file := newAgent(t, &airtest.Options{Relay: relay.ServerOptions{Limits: relay.Limits{RateLimit: -1, AddressRateLimit: -1}}})
	const count = 1001
	for range count {
		e, err := air.NewEnvelope(&air.Draft{ID: air.NewID(), ThreadID: air.NewID(), From: id.DID(), To: id.DID(), Time: time.Now(),
			Body: &air.Withdraw{WithdrawnID: air.NewID()}}, id.Signer(), nil)
		require.NoError(t, err)
		rec := httptest.NewRecorder()
		network.Relay.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, "/inbox/"+bob, bytes.NewReader(e.Bytes())))
		require.Equal(t, http.StatusAccepted, rec.Code)
	}
	out := must(t, "", "pull", "-key", file, "-once", "-registry", network.RegistryURL, "-allow-local")
	require.Equal(t, count, strings.Count(out, "\n"))
}

// The relay serves until it is interrupted, and accepts mail for known agents only.
func TestRelay(t *testing.T) {
	network, id, file := newAgent(t, nil)
	address := commandtest.Serve(t, program, "relay", "-registry", network.RegistryURL, "-allow-local")
	network.Registry.Register(id, "http://"+address+"/inbox/"+bob)
	here := []string{"-key", file, "-registry", network.RegistryURL, "-allow-local"}
	must(t, `{"type":"note","text":"to myself"}`, append(append([]string{"send"}, here...), airtest.DID(bob))...)
	require.Contains(t, must(t, "", append([]string{"pull", "-once"}, here...)...), "to myself")
}

// A relay for any recipient has a mailbox for an agent that the registry does not know; others have none.
func TestRelayForAnyRecipient(t *testing.T) {
	network, id, _ := newAgent(t, nil)
	e, err := air.NewEnvelope(&air.Draft{ID: air.NewID(), ThreadID: air.NewID(), From: id.DID(), To: airtest.DID(alice), Time: time.Now(),
		Body: &air.Withdraw{WithdrawnID: air.NewID()}}, id.Signer(), nil)
	require.NoError(t, err)
	for flag, want := range map[string]int{"-any-recipient=false": http.StatusNotFound, "-any-recipient": http.StatusAccepted} {
		address := commandtest.Serve(t, program, "relay", "-registry", network.RegistryURL, "-allow-local", flag)
		resp, err := http.Post("http://"+address+"/inbox/"+alice, "application/json", bytes.NewReader(e.Bytes()))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, want, resp.StatusCode, flag)
	}
}

func TestHelpAndUsage(t *testing.T) {
	commandtest.CheckHelp(t, program)
	commandtest.CheckUsage(t, program,
		[]string{},
		[]string{"fly"},
		[]string{"sign", "-o", "xml"},
		[]string{"sign", "-wings"},
		[]string{"sign", "-form", "spek"},
		[]string{"sign", "-profile", "all"},
		[]string{"verify", "-accept", "all"},
		[]string{"verify", "-profile", "all"},
		[]string{"transcript", "-profile", "all"},
		[]string{"pull", "-dialect", "all"},
		[]string{"pull", "a"},
		[]string{"probe"},
		[]string{"probe", "-envelope", "-", "a"},
		[]string{"relay", "a"},
		[]string{"send"},
	)
	key, _ := makeKeyFile(t, alice)
	commandtest.CheckRefusedAddress(t, program, "allow-local",
		[]string{"pull", "-key", key, "-registry", "http://127.0.0.1:1"},
		[]string{"pull", "-key", key, "-relay", "http://127.0.0.1:1/inbox/" + alice},
		[]string{"probe", "-registry", "https://10.0.0.1", airtest.DID(bob)},
	)
}

func TestTranscript(t *testing.T) {
	key, public := makeKeyFile(t, alice)
	id, err := air.LoadIdentity(key)
	require.NoError(t, err)
	offer := `{"id":"018fde3a-1234-7abc-8def-aabbccddeeff","from":"` + airtest.DID(alice) + `","to":"` + airtest.DID(bob) +
		`","timestamp":"2026-05-28T09:00:00.000Z","thread_id":"018fde3a-5678-7abc-9012-aabbccddeeff","nonce":"r4nd0mN0nc3-abc123xyz789",` +
		`"body":{"type":"Offer","description":"work","price":{"amount_cents":500,"currency":"USD"},"expires_at":"2026-06-28T09:00:00.000Z"}}`
	signed, err := air.Sign([]byte(offer), id.Signer(), air.FormSpec)
	require.NoError(t, err)
	e, err := air.DecodeEnvelope(signed, nil)
	require.NoError(t, err)
	doc, err := air.DecodeDocument(airtest.Document(id.DID(), public, ""))
	require.NoError(t, err)
	var tr transcript.Transcript
	tr.Add(e.Time, e, doc)
	data, err := transcript.Append(nil, &tr)
	require.NoError(t, err)
	require.Equal(t, "1 messages in thread 018fde3a-5678-7abc-9012-aabbccddeeff, 0 sealed: offered\n"+id.DID()+" "+public+"\n", must(t, string(data), "transcript"))
	status, _, stderr := do(t, strings.Replace(string(data), ":500", ":501", 1), "transcript", "-o", "json")
	require.Equal(t, command.Failed, status)
	require.Contains(t, stderr, "bad_signature")
}
