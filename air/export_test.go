// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"

	"github.com/fivewire/fivewire/internal/budget"
)

// Unexported parts for the tests of package air_test.
var (
	FormatTime    = formatTime
	NewNonce      = newNonce
	ParseEndpoint = parseEndpoint
	SealWith      = sealWith
	SigningInput  = signingInput
	NewBoxKey     = newBoxKey

	AppendCanonical = appendCanonical
	EncodeKey       = encodeKey
	DecodeKey       = decodeKey
	ParseDID        = parseDID
)

type KeyKind = keyKind

const (
	KeyEd25519 = keyEd25519
	KeyX25519  = keyX25519
)

func (k *boxKey) PublicBytes() []byte { return k.x.PublicKey().Bytes() }

func (k *boxKey) Open(b Binding, body []byte) ([]byte, error) { return k.openBody(b, body) }

func (k *PublicKey) X25519() []byte { return k.x.Bytes() }

const DefaultMaxMessage = defaultMaxMessage

// BoundStorage replaces the bound of a peer in the store.
func (t *ThreadStore) BoundStorage(n int64) {
	t.ledger.budget = budget.New(budget.Limits{Storage: budget.Limit{Principal: n}}, t.ledger.evict)
}

// Note applies a move to its thread, without the network.
func (t *ThreadStore) Note(ctx context.Context, e *Envelope, body Body) error {
	_, _, err := t.receive(ctx, e, body)
	return err
}
