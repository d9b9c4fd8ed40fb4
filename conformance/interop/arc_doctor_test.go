// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The doctor finds the deviations of the servers of arc-sdk.
func TestARCDoctorFindsDeviations(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "arc")
	out, err := exec.Command("go", "build", "-o", program, "github.com/fivewire/fivewire/arc/cmd/arc").CombinedOutput()
	require.NoError(t, err, "%s", out)
	common := []string{"ARC-D01", "ARC-D06", "ARC-D10", "ARC-D12", "ARC-D32", "ARC-D36", "ARC-D43", "ARC-D45", "ARC-D55", "ARC-D79", "ARC-D81", "ARC-D83"}
	for kind, further := range map[string][]string{"standalone": {"ARC-D11", "ARC-D17"}, "fastapi": {"ARC-D09"}, "starlette": {"ARC-D09"}} {
		t.Run(kind, func(t *testing.T) {
			p := arcListen(t, kind, nil, nil)
			out, err := exec.Command(program, "doctor", "-o", "json", "-agent", "py-echo", p.url+"/arc").Output()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			require.Equal(t, 1, exit.ExitCode())
			var report struct {
				Peer     string
				Findings []struct{ ID string }
			}
			require.NoError(t, json.Unmarshal(out, &report), "%s", out)
			found := map[string]bool{}
			for _, f := range report.Findings {
				found[f.ID] = true
			}
			var ids []string
			for id := range found {
				ids = append(ids, id)
			}
			require.ElementsMatch(t, append(further, common...), ids, "%s", out)
			require.Equal(t, "arc-sdk (Python)", report.Peer)
		})
	}
}
