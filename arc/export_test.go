// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

// RaceEnabled is raceEnabled, for the tests outside the package.
const RaceEnabled = raceEnabled
