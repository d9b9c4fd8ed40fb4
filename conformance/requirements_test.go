// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// TestRequirements requires of every requirement that a vector or a Go test of
// the package names it, if only a known failure.
func TestRequirements(t *testing.T) {
	root, err := ModuleRoot()
	require.NoError(t, err)
	failures, err := KnownFailures()
	require.NoError(t, err)
	for _, protocol := range []string{"arc", "a2e", "altar", "accp", "air"} {
		t.Run(protocol, func(t *testing.T) {
			q, err := RequirementsOf(protocol)
			require.NoError(t, err)
			sources, err := TestSources(filepath.Join(root, protocol))
			require.NoError(t, err)
			c := q.Cover(Embedded().Cases(), sources, failures)
			t.Logf("%d requirements and decisions: %d proved by vectors, %d by Go tests, %d pending, %d missing",
				c.Total, len(c.ByCase), len(c.ByTest), len(c.Pending), len(c.Missing()))
			for _, id := range c.Pending {
				t.Logf("pending: %s %s", id, q.Text(id))
			}
			require.Empty(t, c.Unknown, "ids that no requirement has")
			require.Empty(t, c.Missing(), "requirements that nothing proves")
			for _, id := range q.IDs() {
				require.NotEmpty(t, q.Text(id), "%s has no text", id)
			}
		})
	}
}

func TestRequirementIDs(t *testing.T) {
	tests := []struct {
		ref      string
		ids      []string
		sections []string
	}{
		{ref: "ARC-036", ids: []string{"ARC-036"}},
		{ref: "ARC-050..052", ids: []string{"ARC-050", "ARC-051", "ARC-052"}},
		{ref: "A2E-034, A2E-102,D-47", ids: []string{"A2E-034", "A2E-102", "D-47"}},
		{ref: "ACCP-D05", ids: []string{"ACCP-D05"}},
		{ref: "e.1"},
		{ref: "section d"},
		{ref: "§6", sections: []string{"6"}},
		{ref: "4.2 5.3", sections: []string{"4.2", "5.3"}},
		{ref: "5.2.2 R4 R5, AIR-D01", ids: []string{"AIR-D01"}, sections: []string{"5.2.2 R4", "5.2.2 R5"}},
		{ref: "GUID-05 is ID-123456 no D-5", ids: []string{"GUID-05"}}, // a family of no protocol; too many digits; too few
	}
	for _, tt := range tests {
		t.Run(tt.ref, func(t *testing.T) {
			require.Equal(t, tt.ids, requirementIDs(tt.ref))
			require.Equal(t, tt.sections, sectionsIn(tt.ref))
		})
	}
}

func fakeRequirements(t *testing.T, text string) (*Requirements, error) {
	t.Helper()
	return readRequirements(fstest.MapFS{"req/fake.json": {Data: []byte(text)}}, "req", "fake", "")
}

func TestCover(t *testing.T) {
	q, err := fakeRequirements(t, `{"protocol":"fake","requirements":[
		{"id":"FAKE-001"},{"id":"FAKE-002"},{"id":"FAKE-003","sections":["4.1"]},{"id":"FAKE-004","sections":["4"]},
		{"id":"FAKE-005"},{"id":"FAKE-006"}
	],"decisions":[{"id":"FAKE-D01"},{"id":"FAKE-D02","text":"two"}]}`)
	require.NoError(t, err)
	require.Len(t, q.IDs(), 8)
	require.Equal(t, "two", q.Text("FAKE-D02"))
	require.Empty(t, q.Text("FAKE-D01"))
	cases := []*Case{
		{ID: "fake-a-001", Protocol: "fake", Ref: "FAKE-001, D-01"},
		{ID: "fake-a-002", Protocol: "fake", Ref: "4.1"},
		{ID: "fake-a-003", Protocol: "fake", Ref: "FAKE-099 OTHER-001"},
		{ID: "fake-a-004", Protocol: "fake", Ref: "FAKE-001 FAKE-002 FAKE-006 4"},
		{ID: "other-a-001", Protocol: "other", Ref: "FAKE-004"},
	}
	failures := []KnownFailure{{ID: "fake-a-004"}, {ID: "other-a-001"}}
	c := q.Cover(cases, map[string]string{"x_test.go": "// TestX shows FAKE-001..002 and D-07.\n"}, failures)
	require.Equal(t, &Coverage{
		Protocol: "fake", Total: 8,
		ByCase:    []string{"FAKE-001", "FAKE-D01"},
		ByTest:    []string{"FAKE-002"},
		Pending:   []string{"FAKE-006"},
		BySection: []string{"FAKE-003"},
		Uncovered: []string{"FAKE-004", "FAKE-005", "FAKE-D02"},
		Unknown:   []string{"FAKE-099 in fake-a-003", "FAKE-D07 in x_test.go"},
	}, c)
	require.Equal(t, []string{"FAKE-003", "FAKE-004", "FAKE-005", "FAKE-D02"}, c.Missing())
}

func TestReadRequirementsRefuses(t *testing.T) {
	for _, text := range []string{
		`{"protocol":"fake"}`,
		`{"protocol":"else","requirements":[{"id":"FAKE-001"}],"decisions":[]}`,
		`{"protocol":"fake","requirements":[],"decisions":[]}`,
		`{"protocol":"fake","requirements":[{"id":"FAKE-001"},{"id":"FAKE-001"}],"decisions":[]}`,
		`{"protocol":"fake","requirements":[{"id":"fake one"}],"decisions":[]}`,
		`{"protocol":"fake","requirements":[{"id":"FAKE-001","title":"x"}],"decisions":[]}`,
		`{"protocol":"fake","requirements":[{"id":"FAKE-001"}],"decisions":[],"more":1}`,
		`{"protocol":"fake","requirements":[{"id":"FAKE-001"}],"decisions":["D-01"]}`,
		`{"protocol":"fake","requirements":[{"id":"FAKE-001"}],"decisions":[{"id":"FAKE-001"}]}`,
		`{"protocol":"fake","requirements":[{"id":"FAKE-001","text":""}],"decisions":[]}`,
		`{"protocol":`,
	} {
		_, err := fakeRequirements(t, text)
		require.Error(t, err, text)
	}
	_, err := RequirementsOf("nobody")
	require.Error(t, err)
}

func TestTestSources(t *testing.T) {
	own, err := TestSources(".")
	require.NoError(t, err)
	require.Contains(t, own, "requirements_test.go")
	require.NotContains(t, own, "requirements.go")
	none, err := TestSources("no such folder")
	require.NoError(t, err)
	require.Empty(t, none)
}
