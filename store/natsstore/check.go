// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore

import (
	"fmt"

	"github.com/fivewire/fivewire/store"
)

func (s *Store) checkValue(value []byte) error {
	if limit := s.MaxValue(); len(value) > limit {
		return fmt.Errorf("%w: value of %d bytes, over %d", store.ErrInvalid, len(value), limit)
	}
	return nil
}
