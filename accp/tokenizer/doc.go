// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package tokenizer counts tokens of ACCP frames with the vocabularies of real models.
package tokenizer
