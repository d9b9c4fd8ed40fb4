// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package tokenizer_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/accptest"
	"github.com/fivewire/fivewire/accp/profile"
	"github.com/fivewire/fivewire/accp/tokenizer/cl100k"
	"github.com/fivewire/fivewire/accp/tokenizer/o200k"
	"github.com/fivewire/fivewire/store"
)

var update = flag.Bool("update", false, "write the measured tables into the README")

// A scenario is one of appendix A of the draft, rebuilt as texts (ACCP-168, ACCP-D61).
type scenario struct {
	ID, Title string
	Draft     struct{ NL, JSON, ACCP int }

	NL, JSON, JSONCompact    string
	Message                  *accp.Message
	Frame, FrameWithEnvelope string

	Hops []struct {
		NL, JSON, Frame string
		Context         []string
	}

	Measured map[string]struct {
		NL, JSON, JSONCompact, ACCP, ACCPWithEnvelope int
	}
}

func scenarios(t testing.TB) []scenario {
	t.Helper()
	file, err := os.ReadFile("testdata/accp-benchmarks.json")
	require.NoError(t, err)
	var doc struct{ Scenarios []scenario }
	require.NoError(t, json.Unmarshal(file, &doc))
	require.Len(t, doc.Scenarios, 5)
	return doc.Scenarios
}

var counters = map[string]accp.TokenCounter{"o200k_base": o200k.Counter{}, "cl100k_base": cl100k.Counter{}}

// A measurement is the tokens of one scenario.
type measurement struct {
	nl, json, compact, frame, envelope int
}

// measure counts a scenario. Frames are those that the codec and a session with the
// default settings produce, not those of the file: the file has to agree.
func (s *scenario) measure(t testing.TB, c accp.TokenCounter) measurement {
	t.Helper()
	var codec accp.Codec
	bare, err := codec.Append(nil, s.Message)
	require.NoError(t, err)
	require.Equal(t, s.Frame, string(bare))
	m := *s.Message
	m.Meta = &accp.Meta{MID: "49679033e07c", Seq: accp.NewOptionalInt(3), TS: accp.NewOptionalInt(1714000000), CID: "49679033e07b", SID: "s1"}
	full, err := codec.Append(nil, &m)
	require.NoError(t, err)
	require.Equal(t, s.FrameWithEnvelope, string(full))
	return measurement{c.Count(s.NL), c.Count(s.JSON), c.Count(s.JSONCompact), c.Count(string(bare)), c.Count(string(full))}
}

// A hopCount is the tokens that are sent at ten hops, by notation.
type hopCount struct{ prose, json, envelopes, frames int }

// measureHops counts what is sent at each hop: the whole history, or the newest summary and the texts since. Each
// notation gets the same summary and the same hops, so that the next participant has the same facts. Frames
// without metadata are those that a session returns for a model.
func (s *scenario) measureHops(t testing.TB, c accp.TokenCounter) (history, since hopCount) {
	t.Helper()
	whole, all := newHopSession(t), hopTexts{}
	whole.ModelContext(1<<20, 1<<19) // from now on, each message adds a line
	hops := slices.Clone(s.Hops)
	for i, hop := range hops {
		hop.Frame = withAddresses(whole, hop.Frame)
		hops[i].Frame = hop.Frame
		var recent []string // with the newest summary
		fresh := newHopSession(t)
		for _, earlier := range hops[:i] {
			receive(t, fresh, earlier.Frame)
		}
		if recent = fresh.ModelContext(1<<20, 1<<19).Lines; len(fresh.Checkpoints()) > 1 {
			recent = recent[len(fresh.Checkpoints())-1:]
		}
		summaries := min(len(fresh.Checkpoints()), 1)
		first := i - (len(recent) - summaries) // of the hops since
		recent = append(recent, withoutMetadata(hop.Frame))
		for k, text := range hop.Context[summaries:] {
			require.Equal(t, withoutMetadata(withAddresses(whole, text)), recent[summaries+k])
		}

		all.add(t, hop.NL, hop.JSON, hop.Frame)
		receive(t, whole, hop.Frame)
		history.add(c, all, whole.ModelContext(1<<20, 1<<19).Lines)
		since.add(c, all.since(first, recent[:summaries]), recent)
	}
	return history, since
}

func newHopSession(t testing.TB) *accp.Session {
	session, err := accp.NewSession("harness", "", nil)
	require.NoError(t, err)
	for _, key := range []string{"q3_table", "summary_v1"} {
		require.NoError(t, session.Put(t.Context(), accp.ScopeCold, key, accp.String("the raw result"), 0))
	}
	return session
}

func receive(t testing.TB, session *accp.Session, frame string) {
	_, err := session.Receive(t.Context(), []byte(frame))
	require.NoError(t, err)
}

// hopTexts are the texts of hops by notation.
type hopTexts struct{ prose, json, frames []string }

func (h *hopTexts) add(t testing.TB, prose, indented, frame string) {
	var members map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(indented), &members))
	metadata := members["meta"]
	require.NotEmpty(t, metadata)
	text := strings.Replace(indented, string(metadata), "null", 1)
	var compact bytes.Buffer
	require.NoError(t, json.Compact(&compact, []byte(text)))
	h.prose, h.frames = append(h.prose, prose), append(h.frames, frame)
	h.json = append(h.json, strings.Replace(compact.String(), `,"meta":null`, "", 1))
}

func (h hopTexts) since(first int, summary []string) hopTexts {
	cut := func(texts []string) []string { return append(slices.Clone(summary), texts[first:]...) }
	return hopTexts{cut(h.prose), cut(h.json), cut(h.frames)}
}

func (n *hopCount) add(c accp.TokenCounter, texts hopTexts, lines []string) {
	n.prose += c.Count(strings.Join(texts.prose, "\n"))
	n.json += c.Count(strings.Join(texts.json, "\n"))
	n.envelopes += countAll(c, texts.frames)
	n.frames += countAll(c, lines)
}

var metadataBlock = regexp.MustCompile(`\[mid:[^\]]*\]$`)

func withoutMetadata(frame string) string { return metadataBlock.ReplaceAllString(frame, "") }

// withAddresses replaces the number of a checkpoint, which the file has, by its address.
func withAddresses(session *accp.Session, frame string) string {
	for i, c := range session.Checkpoints() {
		frame = strings.ReplaceAll(frame, fmt.Sprintf("$warm.cp%d|", i+1), "$warm."+c.ID+"|")
	}
	return frame
}

// countAll counts frames and summaries each by itself, as a session does.
func countAll(c accp.TokenCounter, texts []string) (n int) {
	for _, t := range texts {
		n += c.Count(t)
	}
	return n
}

func percent(now, before int) string {
	return fmt.Sprintf("%.1f %%", 100-100*float64(now)/float64(before))
}

// table renders rows for Markdown.
func table(rows ...[]string) string {
	var b strings.Builder
	for i, r := range rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(r, " | "))
		if i == 0 {
			b.WriteString("|---|" + strings.Repeat("---:|", len(r)-1) + "\n")
		}
	}
	return b.String()
}

func scenarioTable(t testing.TB, vocabulary string) string {
	c := counters[vocabulary]
	rows := [][]string{{"scenario, by " + vocabulary, "draft's claim: text / JSON / ACCP", "text", "indented JSON", "compact JSON", "frame", "frame with envelope",
		"frame under text", "under compact JSON", "with envelope under text", "draft's claim"}}
	for _, s := range scenarios(t)[:4] {
		m := s.measure(t, c)
		claim := fmt.Sprintf("%d / %d / %d", s.Draft.NL, s.Draft.JSON, s.Draft.ACCP)
		row := []string{s.Title, claim, fmt.Sprint(m.nl), fmt.Sprint(m.json), fmt.Sprint(m.compact), fmt.Sprint(m.frame), fmt.Sprint(m.envelope),
			percent(m.frame, m.nl), percent(m.frame, m.compact), percent(m.envelope, m.nl), percent(s.Draft.ACCP, s.Draft.NL)}
		rows = append(rows, row)
	}
	return table(rows...)
}

// hopTable compares notations that get the same history or the same summary.
func hopTable(t testing.TB) string {
	history, since := scenarios(t)[4].measureHops(t, o200k.Counter{})
	row := func(what string, n hopCount) []string {
		return []string{what, fmt.Sprint(n.prose), fmt.Sprint(n.json), fmt.Sprint(n.envelopes), fmt.Sprint(n.frames), percent(n.frames, n.json)}
	}
	return table([]string{"sent at each hop", "text", "compact JSON", "frames", "frames without metadata", "these under JSON"},
		row("the whole history", history), row("the newest summary and the hops since", since))
}

// A choice is a lawful way to write the same with fewer tokens.
type choice struct {
	what, example string
	before, after int
}

func choices(t testing.TB) (out []choice) {
	t.Helper()
	c := o200k.Counter{}
	all := scenarios(t)
	var codec accp.Codec
	encode := func(codec *accp.Codec, m *accp.Message) int {
		frame, err := codec.Append(nil, m)
		require.NoError(t, err)
		return c.Count(string(frame))
	}
	add := func(what, example string, before, after int) {
		out = append(out, choice{what, example, before, after})
	}

	// Checkpoints, over the session of ten hops.
	history, since := all[4].measureHops(t, c)
	add("checkpoints", "ten hops, frames without metadata: the whole history / the newest summary and the frames since", history.frames, since.frames)

	// Deltas: one of ten fields changes.
	opts := &accp.SessionOptions{Budget: accp.BudgetOff}
	accptest.SetIDs(opts, fixedIDs())
	sender, err := accp.NewSession("planner", "s1", opts)
	require.NoError(t, err)
	delta, _ := all[3].Message.Params.Get("delta")
	state := delta.Entries()
	_, err = sender.Sync(t.Context(), state)
	require.NoError(t, err)
	changed, err := sender.Sync(t.Context(), append(accp.Params(nil), state...).Set("task_4", accp.String("done")))
	require.NoError(t, err)
	whole, err := sender.Snapshot(t.Context())
	require.NoError(t, err)
	add("deltas", "state of ten fields, one changed, envelope included", c.Count(string(whole.Frames[0])), c.Count(string(changed.Frames[0])))

	// References: a text of five lines in a shared store.
	text := accp.String(all[4].Hops[0].NL)
	brief := &accp.Message{From: "planner", Intent: accp.IntentReq, Op: profile.OpAnalyze, Params: accp.Params{{Key: "brief", Value: text}, {Key: "who", Value: accp.String("research")}}}
	inline, err := sender.Send(t.Context(), brief)
	require.NoError(t, err)
	opts = &accp.SessionOptions{Persistence: accp.Persistence{SharedStore: store.NewMemory()}}
	accptest.SetIDs(opts, fixedIDs())
	sharing, err := accp.NewSession("planner", "s1", opts)
	require.NoError(t, err)
	stored, err := sharing.Send(t.Context(), brief)
	require.NoError(t, err)
	add("references", "a text of 124 words, envelope included, each time it is sent", c.Count(string(inline.Frames[0])), c.Count(string(stored.Frames[0])))

	// Abbreviations, over the frames of A1 to A4.
	long, short, jsonShort := 0, 0, 0
	for _, s := range all[:4] {
		long += encode(&accp.Codec{WriteLongKeys: true}, s.Message)
		short += encode(&codec, s.Message)
		frame, err := codec.Append(nil, s.Message)
		require.NoError(t, err)
		wire, err := codec.DecodeRaw(frame) // with the short keys
		require.NoError(t, err)
		payload, err := accp.Map(wire.Params...).AppendJSON(nil)
		require.NoError(t, err)
		jsonShort += c.Count(fmt.Sprintf(`{"from":%q,"type":%q,"op":%q,"payload":%s}`, wire.From, wire.Intent, wire.Op, payload))
	}
	add("abbreviated keys", "first four scenarios, no envelope", long, short)

	// Defaults of a schema.
	task := &accp.Message{From: "planner", Intent: accp.IntentReq, Op: profile.OpSchedule, Params: accp.Params{
		{Key: "schema", Value: accp.String(profile.SchemaTask)}, {Key: "assignee", Value: accp.String("dev_team")}, {Key: "task", Value: accp.String("auth")},
		{Key: "priority", Value: accp.String("medium")}, {Key: "deps", Value: accp.Array()}}}
	add("defaults of a schema", "a task of schema TA, no envelope", encode(&accp.Codec{KeepDefaults: true}, task), encode(&codec, task))

	// Metadata.
	const meta = "[mid:%s,seq:3,ts:1714000000%s]"
	r := rand.New(rand.NewPCG(1, 2))
	const n = 1000
	mean := func(id func() string, rest func() string) int {
		sum := 0
		for range n {
			sum += c.Count(fmt.Sprintf(meta, id(), rest()))
		}
		return (sum + n/2) / n
	}
	hex := func() string { return fmt.Sprintf("%012x", r.Uint64()>>16) }
	decimal := func() string { return fmt.Sprintf("%012d", r.Uint64N(1e12)) }
	none := func() string { return "" }
	add("optional metadata", "mid, seq, ts, cid and sid / the required mid, seq and ts; mean of 1,000", mean(hex, func() string { return ",cid:" + hex() + ",sid:s1" }), mean(hex, none))
	add("session ids", "a random sid of 12 hex digits / a short name such as s1", mean(hex, func() string { return ",sid:" + hex() }), mean(hex, func() string { return ",sid:s1" }))
	add("message ids", "12 random hex digits / decimal digits, which are hex digits too (40 random bits instead of 48)", mean(hex, none), mean(decimal, none))

	add("the notation itself", "first four scenarios: compact JSON with the same short keys / frames", jsonShort, short)
	return out
}

// fixedIDs makes ids of twelve hex digits, the same in every run.
func fixedIDs() func() string {
	r := rand.New(rand.NewPCG(3, 4))
	return func() string { return fmt.Sprintf("%012x", r.Uint64()>>16) }
}

func choiceTable(t testing.TB) string {
	rows := [][]string{{"choice", "measured on", "tokens before", "after", "saves"}}
	for _, c := range choices(t) {
		rows = append(rows, []string{c.what, c.example, fmt.Sprint(c.before), fmt.Sprint(c.after), percent(c.after, c.before)})
	}
	return strings.Replace(table(rows...), "|---|---:|", "|---|---|", 1)
}

// worse are texts that become longer as frames.
func worseTable(t testing.TB) string {
	c := o200k.Counter{}
	rows := [][]string{{"message", "text", "frame", "frame with envelope"}}
	for _, w := range []struct {
		text string
		m    *accp.Message
	}{
		{"The build passed.", &accp.Message{From: "ci", Intent: accp.IntentDone, Op: profile.OpValidate, Params: accp.Params{{Key: "status", Value: accp.String("passed")}}}},
		{"Approved, go ahead.", &accp.Message{From: "reviewer", Intent: accp.IntentDone, Op: profile.OpReview, Params: accp.Params{{Key: "verdict", Value: accp.String("approved")}}}},
		{"The cause is a late invoice, which was booked in the ledger on the last day of the quarter but is missing in the export.",
			&accp.Message{From: "analyst", Intent: accp.IntentDone, Op: profile.OpValidate, Params: accp.Params{{Key: "rationale_code",
				Value: accp.String("The cause is a late invoice, which was booked in the ledger on the last day of the quarter but is missing in the export.")}}}},
	} {
		var codec accp.Codec
		bare, err := codec.Append(nil, w.m)
		require.NoError(t, err)
		m := *w.m
		m.Meta = &accp.Meta{MID: "49679033e07c", Seq: accp.NewOptionalInt(3), TS: accp.NewOptionalInt(1714000000), CID: "49679033e07b", SID: "s1"}
		full, err := codec.Append(nil, &m)
		require.NoError(t, err)
		rows = append(rows, []string{w.text + "<br>`" + strings.ReplaceAll(string(bare), "|", "\\|") + "`", fmt.Sprint(c.Count(w.text)), fmt.Sprint(c.Count(string(bare))), fmt.Sprint(c.Count(string(full)))})
	}
	return table(rows...)
}

// The file's own figures are those that are measured, by both vocabularies.
func TestScenarios(t *testing.T) {
	for name, c := range counters {
		for _, s := range scenarios(t) {
			want := s.Measured[name]
			if s.Hops != nil { // the file compares contexts with different facts
				history, _ := s.measureHops(t, c)
				require.Equal(t, want.NL, history.prose, s.ID)
				continue
			}
			m := s.measure(t, c)
			require.Equal(t, want.NL, m.nl, s.ID)
			require.Equal(t, want.JSON, m.json, s.ID)
			require.Equal(t, want.JSONCompact, m.compact, s.ID)
			require.Equal(t, want.ACCP, m.frame, s.ID)
			require.Equal(t, want.ACCPWithEnvelope, m.envelope, s.ID)
		}
	}
}

// The bounds that the package sets itself: frames without metadata have at most
// 0.75 of the tokens of compact JSON without envelope, over four samples, and the
// required metadata 20, or a few more if the random id is cut badly.
func TestTokenGoals(t *testing.T) {
	c := o200k.Counter{}
	codec := accp.Codec{Lenient: true}
	frames, compact := 0, 0
	for _, s := range []struct{ frame, json string }{
		{`@planner>req:schedule{who:@dev_team|when:sprint_14|task:impl_auth_module|pri:high}`,
			`{"from":"planner","intent":"request","operation":"schedule","payload":{"target":"@dev_team","when":"sprint_14","task":"implement_auth_module","priority":"high"}}`},
		{`@research>done:analyze{d:q3_sales|f:[rev\:-12%QoQ,ent_seg\:declining,churn\:+3.2%]|nx:@strategy\:plan}`,
			`{"from":"research","intent":"complete","operation":"analyze","payload":{"dataset":"q3_sales","findings":["revenue:-12%QoQ","enterprise_segment:declining","churn:+3.2%"],"next_action":"@strategy:plan"}}`},
		{`@orchestrator>req:tool{tool:web_search|args:{q:ACCP,max:5}|pri:urgent|retry:3|cache:false|schema:TC}`,
			`{"from":"orchestrator","intent":"request","operation":"tool","schema":"TC","payload":{"tool_name":"web_search","arguments":{"query":"ACCP","max_results":5},"priority":"urgent","retry":3,"cache":false}}`},
		{`@payments>req:transaction{txn:txn_001|amt:142.5|acc:acct_9876|retryable:true|schema:TX}`,
			`{"from":"payments","intent":"request","operation":"transaction","schema":"TX","payload":{"transaction_id":"txn_001","amount":142.5,"currency":"USD","account":"acct_9876","status":"pending","retryable":true}}`},
	} {
		m, err := codec.Decode([]byte(s.frame))
		require.NoError(t, err)
		frame, err := codec.Append(nil, m)
		require.NoError(t, err)
		frames, compact = frames+c.Count(string(frame)), compact+c.Count(s.json)
	}
	t.Logf("frames have %.3f of the tokens of compact JSON", float64(frames)/float64(compact))
	require.LessOrEqual(t, float64(frames), 0.75*float64(compact))
	require.LessOrEqual(t, c.Count("[mid:49679033e07c,seq:3,ts:1714000000]"), 20)
	for _, c := range choices(t) {
		require.Less(t, c.after, c.before, c.what)
		if c.what == "optional metadata" {
			require.LessOrEqual(t, c.after, 21) // the mean over random ids
		}
	}
}

// The tables of the README are the measured ones. Run with -update to write them.
func TestREADME(t *testing.T) {
	const file = "README.md"
	readme, err := os.ReadFile(file)
	require.NoError(t, err)
	want := string(readme)
	for name, text := range map[string]string{
		"scenarios": scenarioTable(t, "o200k_base"),
		"cl100k":    scenarioTable(t, "cl100k_base"),
		"choices":   choiceTable(t),
		"hops":      hopTable(t),
		"worse":     worseTable(t),
		"runs":      runTable(t),
		"ratios":    ratioTable(t),
	} {
		begin, end := "<!-- measured: "+name+" -->\n", "<!-- end -->"
		before, rest, ok := strings.Cut(want, begin)
		require.True(t, ok, "no table %s in the README", name)
		_, after, ok := strings.Cut(rest, end)
		require.True(t, ok)
		t.Logf("%s\n%s", name, text)
		want = before + begin + text + end + after
	}
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(readme), "the README differs from the measurement; run go test -run README -update")
}

// The figures outside of the tables are the measured ones too.
func TestREADMEProse(t *testing.T) {
	file, err := os.ReadFile("README.md")
	require.NoError(t, err)
	readme := strings.Join(strings.Fields(string(file)), " ")
	c := o200k.Counter{}
	saved := func(now, before int) float64 { return 100 - 100*float64(now)/float64(before) }
	var text, compact, envelope []float64
	all := scenarios(t)
	for _, s := range all[:4] {
		m := s.measure(t, c)
		require.Greater(t, m.envelope, m.compact, "tokens of a frame with envelope")
		text, compact, envelope = append(text, saved(m.frame, m.nl)), append(compact, saved(m.frame, m.compact)), append(envelope, saved(m.envelope, m.nl))
	}
	history, since := all[4].measureHops(t, c)
	for _, want := range []string{
		fmt.Sprintf("| a frame without envelope | %.0f to %.0f %% fewer tokens | %.0f to %.0f %% fewer |",
			slices.Min(text), slices.Max(text), slices.Min(compact), slices.Max(compact)),
		fmt.Sprintf("| from %.0f %% more to %.0f %% fewer | more in each scenario |", -slices.Min(envelope), slices.Max(envelope)),
		fmt.Sprintf("| ten hops between five agents, the whole history | %.0f %% fewer | %.0f %% fewer |",
			saved(history.frames, history.prose), saved(history.frames, history.json)),
		fmt.Sprintf("| ten hops, summary and hops since | %.0f %% fewer | %.0f %% fewer |",
			saved(since.frames, since.prose), saved(since.frames, since.json)),
		fmt.Sprintf("| %d generated runs, median cost with a prompt cache | %.0f %% less | %.0f %% less |", generatedRuns,
			100-100*quantile(ratios(t, func(r *runResult) float64 { return r.view[isACCP].cached / r.view[0].cached }), 0.5),
			100-100*quantile(ratios(t, (*runResult).ratio), 0.5)),
	} {
		require.Contains(t, readme, want)
	}

	// How far the estimate is off, over all the frames.
	estimated, exact := 0, 0
	for _, s := range all {
		frames := []string{s.Frame, s.FrameWithEnvelope}
		for _, hop := range s.Hops {
			frames = append(frames, hop.Frame)
		}
		for _, f := range frames {
			estimated, exact = estimated+accp.ApproxCounter{}.Count(f), exact+c.Count(f)
		}
	}
	t.Logf("the estimate is %.3f of the exact count", float64(estimated)/float64(exact))
	require.InDelta(t, 1.06, float64(estimated)/float64(exact), 0.04)
	require.Equal(t, c.Count("priority"), c.Count("pri"))
}

// Tokens are the metrics; the time is that of counting them all.
func BenchmarkScenarios(b *testing.B) {
	for name, c := range counters {
		for _, s := range scenarios(b) {
			b.Run("scenario="+s.ID+"/enc="+name, func(b *testing.B) {
				var m measurement
				for b.Loop() {
					m = s.measure(b, c)
				}
				b.ReportMetric(float64(m.nl), "text-tokens")
				b.ReportMetric(float64(m.json), "json-tokens")
				b.ReportMetric(float64(m.compact), "compact-tokens")
				b.ReportMetric(float64(m.frame), "frame-tokens")
				b.ReportMetric(float64(m.envelope), "envelope-tokens")
			})
		}
	}
}
