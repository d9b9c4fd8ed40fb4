// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"fmt"
	"io"
)

// A WebhookSecret is what the sender and the receiver of a webhook share. With
// the prefix whsec_ it is, for the Standard Webhooks headers, Base64 of the key;
// in every other use its bytes are the key.
type WebhookSecret string

// Format hides the secret, so that it gets into no log.
func (WebhookSecret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "whsec_...") }
