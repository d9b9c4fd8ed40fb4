// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package accptest has a server and a client in memory, and scripted servers for tests of programs that use package accp.
// Everything works in a bubble of testing/synctest.
//
//	srv, client := accptest.NewPair(t, nil)
//	srv.Handle(accp.IntentReq, profile.OpTool, handler)
//	...
//	peer := accptest.NewPeer(t, accptest.Receive("req:tool"), accptest.SendStatus(503, nil, ""))
//	client, err := accp.NewClient(peer.URL, "tester", &accp.ClientOptions{HTTPClient: peer.HTTPClient})
package accptest

import (
	"encoding/json"
	"math"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/internal/bridge"
	"github.com/fivewire/fivewire/accp/internal/hook"
	"github.com/fivewire/fivewire/internal/vector"
)

// SetIDs sets the generator of message ids: each call of next returns another id of 12 lower case
// hex digits.
func SetIDs(o *accp.SessionOptions, next func() string) { hook.SetIDs(o, next) }

// SkipGreeting lets a client send no greeting before its first message over HTTP, for servers that
// answer from a list.
func SkipGreeting(o *accp.ClientOptions) { hook.SkipGreeting(o) }

// Version returns the version of a registry: one plus the sum of the versions of its custom schemas.
func Version(r *accp.Registry) int64 { return hook.Version(r) }

// Vector runs an operation of the conformance vectors that concerns no exported function of package
// accp. An unknown operation is an error.
//
// The operations mcp-resource, mcp-result, mcp-plain and mcp-call return the data of MCP for a frame in base64,
// a2a-wrap a part of an A2A message of a version, a2a-unwrap the frame in a part in base64, and
// a2a-state the state of a task for an intent. The operation digest returns the digest of a value, and
// checkpoint-id the hash and the id of a checkpoint. The operation registry-canonical returns the canonical text of a
// schema; delta-apply the state after a delta, delta-diff the delta between two states, and key the full and the short form
// of a key under a schema; registry-hash and registry-merge return the version and the hash of a registry, before and after a merge. The operation "bpe" returns the ranks of the tokens of a text, -1 for a byte outside the
// vocabulary. Its input has the members text and ranks, the tokens in base64, the lowest rank first.
func Vector(op string, in json.RawMessage) (json.RawMessage, error) { return vectors.Run(op, in) }

var vectors = vector.Ops{"bpe": vector.New(bpe), "mcp-resource": vector.New(mcpResource), "mcp-result": vector.New(mcpResult),
	"mcp-plain": vector.New(mcpPlain),
	"mcp-call":  vector.New(mcpCall), "a2a-wrap": vector.New(a2aWrap), "a2a-unwrap": vector.New(a2aUnwrap),
	"a2a-state": vector.New(a2aState), "digest": vector.New(digest), "checkpoint-id": vector.New(checkpointID),
	"registry-canonical": vector.New(registryCanonical), "registry-hash": vector.New(registryHash), "registry-merge": vector.New(registryMerge),
	"delta-apply": vector.New(deltaApply), "delta-diff": vector.New(deltaDiff), "key": vector.New(key)}

type frameInput struct {
	Frame   []byte `json:"frame"`
	Version string `json:"version"`
}

func mcpResource(in frameInput) (any, error) { return bridge.ToResource(in.Frame) }
func mcpResult(in frameInput) (any, error)   { return bridge.ToResult(in.Frame) }
func mcpPlain(in frameInput) (any, error)    { return bridge.ToPlain(in.Frame) }
func a2aWrap(in frameInput) (any, error)     { return bridge.ToPart(in.Frame, in.Version) }
func a2aState(in accp.Intent) (any, error)   { return bridge.TaskState(in), nil }

func a2aUnwrap(in []byte) (any, error) {
	frame, err := bridge.FromPart(in)
	return string(frame), err
}

func digest(in accp.Value) (any, error) {
	d, err := hook.Digest(in)
	return map[string]string{"digest": d}, err
}

func checkpointID(in struct {
	Frames  []string `json:"frames"`
	Summary string   `json:"summary"`
}) (any, error) {
	hash, digits := hook.Address(in.Frames, in.Summary)
	return map[string]string{"hash": hash, "id": "cp" + digits[:8]}, nil
}

// A registryInput has the custom schemas of a registry, and those of a peer with their hash.
type registryInput struct {
	Schemas []accp.Schema `json:"schemas"`
	Delta   accp.Value    `json:"delta"`
	Hash    string        `json:"hash"`
}

func (in *registryInput) registry() (*accp.Registry, error) {
	r := accp.NewRegistry()
	for _, s := range in.Schemas {
		if err := r.Register(s); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func registryHash(in registryInput) (any, error) {
	r, err := in.registry()
	if err != nil {
		return nil, err
	}
	return map[string]any{"version": Version(r), "short": r.Hash()[:12], "full": r.Hash()}, nil
}

func registryMerge(in registryInput) (any, error) {
	r, err := in.registry()
	if err == nil {
		err = hook.Merge(r, in.Delta, in.Hash)
	}
	if err != nil {
		return nil, err
	}
	return map[string]any{"version": Version(r), "full": r.Hash(), "codes": append([]string{}, r.Codes()...)}, nil
}

// A deltaInput has two states, or a state and a delta.
type deltaInput struct {
	State accp.Params `json:"state"`
	Other accp.Params `json:"other"`
}

func deltaApply(in deltaInput) (any, error) { return hook.Apply(in.State, in.Other), nil }
func deltaDiff(in deltaInput) (any, error)  { return hook.Diff(in.State, in.Other), nil }

func key(in struct {
	registryInput
	Key    string `json:"key"`
	Schema string `json:"schema"`
}) (any, error) {
	r, err := in.registry()
	if err != nil {
		return nil, err
	}
	full, short, err := hook.Key(r, in.Key, in.Schema)
	return map[string]string{"full": full, "short": short}, err
}

func registryCanonical(in accp.Schema) (any, error) { return hook.Canonical(in) }

func mcpCall(in frameInput) (any, error) {
	m, err := new(accp.Codec).Decode(in.Frame)
	if err != nil {
		return nil, err
	}
	name, arguments, err := bridge.Call(m)
	return map[string]any{"name": name, "arguments": arguments}, err
}

func bpe(in struct {
	Ranks [][]byte `json:"ranks"`
	Text  string   `json:"text"`
}) (any, error) {
	ranks := make(map[string]int, len(in.Ranks))
	for i, token := range in.Ranks {
		ranks[string(token)] = i
	}
	return encode(ranks, in.Text), nil
}

// encode merges the pair of adjacent tokens with the lowest rank, of equal ranks the leftmost,
// until no pair has a rank (ACCP-123).
func encode(ranks map[string]int, text string) []int {
	tokens := []string{}
	for i := range len(text) {
		tokens = append(tokens, text[i:i+1])
	}
	for {
		best, at := math.MaxInt, -1
		for i := range len(tokens) - 1 {
			if r, ok := ranks[tokens[i]+tokens[i+1]]; ok && r < best {
				best, at = r, i
			}
		}
		if at < 0 {
			break
		}
		tokens[at] += tokens[at+1]
		tokens = append(tokens[:at+1], tokens[at+2:]...)
	}
	out := []int{}
	for _, token := range tokens {
		r, ok := ranks[token]
		if !ok {
			r = -1
		}
		out = append(out, r)
	}
	return out
}
