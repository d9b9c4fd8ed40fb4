// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/fivewire/fivewire/store"
	"github.com/fivewire/fivewire/store/sqlstore"
)

// A replay window that a restart does not forget.
func ExampleOpen() {
	folder, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	ctx := context.Background()
	for range 2 { // two lives of a process
		s, err := sqlstore.Open(ctx, filepath.Join(folder, "state.db"), nil)
		if err != nil {
			log.Fatal(err)
		}
		_, err = s.Create(ctx, "seen/nonce-1", nil, 5*time.Minute)
		fmt.Println(errors.Is(err, store.ErrExists), err)
		if err := s.Close(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// false <nil>
	// true store: key exists
}
