// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

// Unexported parts for the tests of package air_test.
var (
	FormatTime    = formatTime
	NewNonce      = newNonce
	ParseEndpoint = parseEndpoint
	SealWith      = sealWith
	SigningInput  = signingInput

	AppendCanonical = appendCanonical
	EncodeKey       = encodeKey
	DecodeKey       = decodeKey
)

type KeyKind = keyKind

const (
	KeyEd25519 = keyEd25519
	KeyX25519  = keyX25519
)

func (k *BoxKey) PublicBytes() []byte { return k.x.PublicKey().Bytes() }

const DefaultMaxMessage = defaultMaxMessage
