// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package tokens is what verifiers of access tokens share that are signed JWTs
// (RFC 7519): which issuers there are, where their keys are and for how long they
// are believed, and what a token must look like before anybody spends time on its
// signature.
//
// The signature itself, and the checks that every JWT needs, are the business of
// a [Library]. It comes with the nested modules that use this package, so that
// the main module does not require one.
package tokens
