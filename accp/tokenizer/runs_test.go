// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package tokenizer_test

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/accptest"
	"github.com/fivewire/fivewire/accp/profile"
	"github.com/fivewire/fivewire/accp/tokenizer/o200k"
	"github.com/fivewire/fivewire/internal/race"
)

// generatedRuns is the number of runs of the measurement; the seed of a run is its index.
const generatedRuns = 120

// Bounds of the context of a generated run in tokens.
const runMaximum, runKeep = 2000, 1000

// Prices of a token, relative to one that is read without a cache.
const priceWritten, priceCached = 1.25, 0.1

// notations are the forms of a line. The last form is the notation of the package.
var notations = []string{"prose", "compact JSON", "CSV", "TOON", "ACCP"}

const isJSON, isACCP = 1, 4

// A field is a statement of a message.
type field struct {
	name  string
	value accp.Value
}

// A hop is one message of a generated run, with the texts that state the same in each notation.
type hop struct {
	from   string
	intent accp.Intent
	op     string
	fields []field
	rows   []accp.Params // of a table
	state  bool

	document string   // the key of a document in cold state
	texts    []string // by notation
	members  [][]member
}

// A generator makes the hops of a run.
type generator struct {
	*rand.Rand
	state     accp.Params
	documents int
}

var (
	agents   = []string{"planner", "research", "analyst", "writer", "reviewer"}
	datasets = []string{"q3_sales", "churn_2026", "support_tickets", "web_traffic", "inventory"}
	metrics  = []string{"revenue", "churn", "enterprise_segment", "margin", "open_tickets", "conversion", "latency_ms", "backlog"}
	tasks    = []string{"collect the late invoices", "draft_summary", "compare regions", "impl_auth_module", "review the export job", "update_forecast"}
	remarks  = []string{"the export lacks two days", "numbers agree with finance", "wait for the auditor", "one region reports late", "check again on Monday"}
)

func (g *generator) hop() *hop {
	h := &hop{from: pick(g.Rand, agents...)}
	add := func(name string, v accp.Value) { h.fields = append(h.fields, field{name, v}) }
	switch n := g.IntN(100); {
	case n < 25: // a request
		h.intent, h.op = accp.IntentReq, pick(g.Rand, profile.OpPlan, profile.OpExecute, profile.OpTransform)
		add("target", accp.String(pick(g.Rand, agents...)))
		add("task", accp.String(pick(g.Rand, tasks...)))
		add("priority", accp.String(pick(g.Rand, "low", "medium", "high")))
		add("retries", accp.Int(int64(g.IntN(5))))
	case n < 55: // findings
		h.intent, h.op = accp.IntentDone, pick(g.Rand, profile.OpAnalyze, profile.OpReview, profile.OpValidate)
		add("dataset", accp.String(pick(g.Rand, datasets...)))
		for _, i := range g.Perm(len(metrics))[:2+g.IntN(4)] {
			add(metrics[i], accp.Int(int64(g.IntN(2000)-500)))
		}
		if g.IntN(3) == 0 {
			add("note", accp.String(pick(g.Rand, remarks...)))
		}
	case n < 65: // a document
		h.intent, h.op = accp.IntentDone, profile.OpSummarize
		add("dataset", accp.String(pick(g.Rand, datasets...)))
		g.documents++
		h.document = fmt.Sprintf("report_%d", g.documents)
		add("document", accp.Ref(string(accp.ScopeCold)+"."+h.document))
	case n < 78: // a table
		h.intent, h.op = accp.IntentDone, profile.OpFetch
		for i := range 3 + g.IntN(28) {
			amount, _ := accp.Decimal(fmt.Sprintf("%d.%d%d", g.IntN(5000), g.IntN(10), 1+g.IntN(9)))
			h.rows = append(h.rows, accp.Params{{Key: "amount", Value: amount}, {Key: "customer", Value: accp.String(pick(g.Rand, "Northwind", "Contoso", "Fabrikam", "Globex", "Acme Tools"))},
				{Key: "due", Value: accp.String(fmt.Sprintf("2026-%02d-%02d", 1+g.IntN(12), 1+g.IntN(28)))}, {Key: "id", Value: accp.Int(int64(1000 + i))}, {Key: "paid", Value: accp.Bool(g.IntN(2) == 0)}})
		}
	default: // a change of the state
		h.from, h.intent, h.op, h.state = "harness", accp.IntentSync, profile.OpState, true
		for range 1 + g.IntN(3) {
			g.state = slices.Clone(g.state).Set(fmt.Sprintf("task_%d", g.IntN(10)), accp.String(pick(g.Rand, "open", "running", "blocked", "done", "failed")))
		}
	}
	return h
}

// A member is a fact of a hop: the name that summaries use for it, and its value as text.
type member struct{ name, value string }

func plain(v accp.Value) string {
	if text, ok := v.Text(); ok {
		return text
	}
	if key, ok := v.Ref(); ok {
		return "$" + key
	}
	out, err := v.AppendJSON(nil)
	if err != nil {
		panic(err)
	}
	return string(out)
}

// write makes the texts of a hop of which the line in ACCP is given. Each notation names a document by its reference, and
// has the version and the changes of the state.
func (h *hop) write(t testing.TB, codec *accp.Codec, line string) {
	t.Helper()
	m, err := codec.Decode([]byte(line))
	require.NoError(t, err, line)
	if h.state {
		version, _ := m.Params.Get("version")
		delta, _ := m.Params.Get("delta")
		h.fields = []field{{"version", version}}
		for _, p := range delta.Entries() {
			h.fields = append(h.fields, field{"delta." + p.Key, p.Value})
		}
	}
	h.texts = []string{h.prose(), h.json(t), h.csv(), h.toon(), line}
	for n, text := range h.texts {
		h.members = append(h.members, readers[n](t, codec, text))
	}
}

// what is the verb of prose.
func (h *hop) what() string {
	return map[accp.Intent]string{accp.IntentReq: "requests", accp.IntentDone: "has finished", accp.IntentSync: "shares"}[h.intent]
}

func (h *hop) prose() string {
	var b strings.Builder
	fmt.Fprintf(&b, "The agent %s %s the operation %s.", h.from, h.what(), h.op)
	for _, f := range h.fields {
		fmt.Fprintf(&b, " The %s is %s.", strings.TrimPrefix(f.name, "delta."), plain(f.value))
	}
	for _, row := range h.rows {
		fmt.Fprintf(&b, " Invoice %s of %s about %s is due on %s (paid: %s).", plain(row[3].Value), plain(row[1].Value), plain(row[0].Value), plain(row[2].Value), plain(row[4].Value))
	}
	return b.String()
}

func (h *hop) json(t testing.TB) string {
	var payload accp.Value
	switch {
	case h.rows != nil:
		rows := make([]accp.Value, len(h.rows))
		for i, row := range h.rows {
			rows[i] = accp.Map(row...)
		}
		payload = accp.Map(accp.Param{Key: "rows", Value: accp.Array(rows...)})
	default:
		var params, delta accp.Params
		for _, f := range h.fields {
			if key, ok := strings.CutPrefix(f.name, "delta."); ok {
				delta = append(delta, accp.Param{Key: key, Value: f.value})
			} else {
				value := f.value
				if _, ok := value.Ref(); ok {
					value = accp.String(plain(value))
				}
				params = append(params, accp.Param{Key: f.name, Value: value})
			}
		}
		if h.state {
			params = append(params, accp.Param{Key: "delta", Value: accp.Map(delta...)})
		}
		payload = accp.Map(params...)
	}
	text, err := payload.AppendJSON(nil)
	require.NoError(t, err)
	return fmt.Sprintf(`{"from":%q,"type":%q,"op":%q,"payload":%s}`, h.from, h.intent, h.op, text)
}

// csv writes one record of the names and one of the values; a table has more of these.
func (h *hop) csv() string {
	var b strings.Builder
	w := csv.NewWriter(&b)
	names, values := []string{"from", "type", "op"}, []string{h.from, string(h.intent), h.op}
	for _, f := range h.fields {
		names, values = append(names, strings.TrimPrefix(f.name, "delta.")), append(values, plain(f.value))
	}
	_ = w.WriteAll([][]string{names, values})
	for i, row := range h.rows {
		if i == 0 {
			_ = w.Write([]string{"amount", "customer", "due", "id", "paid"})
		}
		var record []string
		for _, p := range row {
			record = append(record, plain(p.Value))
		}
		_ = w.Write(record)
	}
	w.Flush()
	return strings.TrimSuffix(b.String(), "\n")
}

func (h *hop) toon() string {
	var b strings.Builder
	fmt.Fprintf(&b, "from: %s\ntype: %s\nop: %s", h.from, h.intent, h.op)
	nested := false
	for _, f := range h.fields {
		name, isNested := strings.CutPrefix(f.name, "delta.")
		if isNested && !nested {
			b.WriteString("\ndelta:")
		}
		nested = isNested
		if nested {
			name = "  " + name
		}
		fmt.Fprintf(&b, "\n%s: %s", name, plain(f.value))
	}
	for i, row := range h.rows {
		if i == 0 {
			fmt.Fprintf(&b, "\nrows[%d]{amount,customer,due,id,paid}:", len(h.rows))
		}
		var record []string
		for _, p := range row {
			record = append(record, plain(p.Value))
		}
		b.WriteString("\n  " + strings.Join(record, ","))
	}
	return b.String()
}

// readers return the facts that a line states, by notation.
var readers = []func(t testing.TB, codec *accp.Codec, line string) []member{readProse, readJSON, readCSV, readTOON, readACCP}

func cell(from, op, id, column, value string) member {
	return member{fmt.Sprintf("%s:%s.%s.%s", from, op, id, column), value}
}

var (
	proseHead  = regexp.MustCompile(`^The agent (\w+) [a-z ]+ the operation (\w+)\.`)
	proseField = regexp.MustCompile(` The (\w+) is (.*?)\.(?: |$)`)
	proseRow   = regexp.MustCompile(` Invoice (\d+) of ([\w ]+) about ([\d.]+) is due on ([\d-]+) \(paid: (\w+)\)\.`)
)

func stateName(op, name string) string {
	if op == profile.OpState && name != "version" {
		return "delta." + name
	}
	return name
}

func readProse(t testing.TB, _ *accp.Codec, line string) (out []member) {
	head := proseHead.FindStringSubmatch(line)
	require.NotNil(t, head, line)
	rest := line[len(head[0]):]
	for _, row := range proseRow.FindAllStringSubmatch(rest, -1) {
		for i, column := range []string{"customer", "amount", "due", "paid"} {
			out = append(out, cell(head[1], head[2], row[1], column, row[2+i]))
		}
	}
	for rest != "" && out == nil || strings.HasPrefix(rest, " The ") {
		f := proseField.FindStringSubmatchIndex(rest)
		require.NotNil(t, f, line)
		out = append(out, member{fmt.Sprintf("%s:%s.%s", head[1], head[2], stateName(head[2], rest[f[2]:f[3]])), rest[f[4]:f[5]]})
		rest = rest[f[5]+1:]
	}
	return out
}

func readJSON(t testing.TB, _ *accp.Codec, line string) (out []member) {
	var doc struct {
		From, Op string
		Payload  map[string]any
	}
	d := json.NewDecoder(strings.NewReader(line))
	d.UseNumber()
	require.NoError(t, d.Decode(&doc))
	for key, value := range doc.Payload {
		switch x := value.(type) {
		case []any:
			for _, row := range x {
				row := row.(map[string]any)
				for column, v := range row {
					out = append(out, cell(doc.From, doc.Op, fmt.Sprint(row["id"]), column, fmt.Sprint(v)))
				}
			}
		case map[string]any:
			for k, v := range x {
				out = append(out, member{fmt.Sprintf("%s:%s.%s.%s", doc.From, doc.Op, key, k), fmt.Sprint(v)})
			}
		default:
			out = append(out, member{fmt.Sprintf("%s:%s.%s", doc.From, doc.Op, key), fmt.Sprint(x)})
		}
	}
	return out
}

func readCSV(t testing.TB, _ *accp.Codec, line string) (out []member) {
	r := csv.NewReader(strings.NewReader(line))
	r.FieldsPerRecord = -1
	records, err := r.ReadAll()
	require.NoError(t, err)
	from, op := records[1][0], records[1][2]
	for i, name := range records[0][3:] {
		out = append(out, member{fmt.Sprintf("%s:%s.%s", from, op, stateName(op, name)), records[1][3+i]})
	}
	for i := 3; i < len(records); i++ {
		for k, column := range records[2] {
			out = append(out, cell(from, op, records[i][3], column, records[i][k]))
		}
	}
	return out
}

func readTOON(_ testing.TB, _ *accp.Codec, line string) (out []member) {
	head := map[string]string{}
	path := ""
	var columns []string
	for text := range strings.SplitSeq(line, "\n") {
		inner, isNested := strings.CutPrefix(text, "  ")
		name, value, _ := strings.Cut(inner, ": ")
		switch {
		case columns != nil:
			values := strings.Split(inner, ",")
			for k, column := range columns {
				out = append(out, cell(head["from"], head["op"], values[3], column, values[k]))
			}
		case isNested:
			out = append(out, member{fmt.Sprintf("%s:%s.%s.%s", head["from"], head["op"], path, name), value})
		case strings.HasPrefix(text, "rows["):
			_, list, _ := strings.Cut(text, "{")
			columns = strings.Split(strings.TrimSuffix(list, "}:"), ",")
		case strings.HasSuffix(text, ":"):
			path = strings.TrimSuffix(text, ":")
		case len(head) < 3:
			head[name] = value
		default:
			out = append(out, member{fmt.Sprintf("%s:%s.%s", head["from"], head["op"], name), value})
		}
	}
	return out
}

func readACCP(t testing.TB, codec *accp.Codec, line string) (out []member) {
	m, err := codec.Decode([]byte(line))
	require.NoError(t, err, line)
	name := func(key string) string { return fmt.Sprintf("%s:%s.%s", m.From, m.Op, key) }
	if m.Params.Text("schema") == profile.SchemaTable {
		rows, err := profile.RowsOf[accp.Params](m.Params)
		require.NoError(t, err)
		for _, row := range rows {
			id, _ := row.Get("id")
			for _, p := range row {
				out = append(out, cell(m.From, m.Op, plain(id), p.Key, plain(p.Value)))
			}
		}
		return out
	}
	for _, p := range m.Params {
		switch {
		case p.Value.Kind() == accp.KindMap:
			for _, e := range p.Value.Entries() {
				out = append(out, member{name(p.Key + "." + e.Key), plain(e.Value)})
			}
		case p.Key != "base":
			out = append(out, member{name(p.Key), plain(p.Value)})
		}
	}
	return out
}

// readSummary returns the facts of the summary of a checkpoint, without shortened values.
func readSummary(t testing.TB, codec *accp.Codec, text string) (out []member) {
	for line := range strings.SplitSeq(text, "\n") {
		name, value, ok := strings.Cut(line, "=")
		require.True(t, ok, line)
		if strings.HasSuffix(value, "..") {
			continue
		}
		m, err := codec.Decode([]byte("@a>req:x{k:" + value + "}"))
		require.NoError(t, err, line)
		v, _ := m.Params.Get("k")
		out = append(out, member{name, plain(v)})
	}
	return out
}

// A bill is what the contexts of a run cost: tokens, and their price with a prompt cache.
type bill struct{ tokens, cached float64 }

// A runResult is the bills of a run by notation, for the whole history and for the context of the session, and how many
// of the questions the latter answers.
type runResult struct {
	hops               int
	history, view      []bill
	questions, answers int
}

// ratio returns the price of the context of the session, with a prompt cache, relative to the same context in JSON.
func (r *runResult) ratio() float64 { return r.view[isACCP].cached / r.view[isJSON].cached }

// A meter adds the contexts of one notation. A provider caches the longest prefix that the last request had.
type meter struct {
	bill
	last []string
}

var lineTokens sync.Map // counts of lines, which contexts repeat

func tokensOfLine(line string) float64 {
	n, ok := lineTokens.Load(line)
	if !ok {
		n, _ = lineTokens.LoadOrStore(line, o200k.Counter{}.Count(line)+1)
	}
	return float64(n.(int))
}

func (m *meter) add(lines []string) {
	stable := true
	for i, line := range lines {
		n := tokensOfLine(line)
		stable = stable && i < len(m.last) && m.last[i] == line
		m.tokens += n
		if stable {
			m.cached += priceCached * n
		} else {
			m.cached += priceWritten * n
		}
	}
	m.last = lines
}

// newRunSession returns a session that every agent of a run writes to.
func newRunSession(t testing.TB, registry *accp.Registry) *accp.Session {
	opts := &accp.SessionOptions{Registry: registry, TokenCounter: o200k.Counter{}, Logger: slog.New(slog.DiscardHandler)}
	accptest.SetIDs(opts, fixedIDs())
	s, err := accp.NewSession("harness", "s1", opts)
	require.NoError(t, err)
	return s
}

func (h *hop) send(t testing.TB, s *accp.Session, state accp.Params) {
	t.Helper()
	if h.state {
		_, err := s.Sync(t.Context(), state)
		require.NoError(t, err)
		return
	}
	if h.document != "" {
		require.NoError(t, s.Put(t.Context(), accp.ScopeCold, h.document, accp.String("the text of the document"), 0))
	}
	m := &accp.Message{From: h.from, Intent: h.intent, Op: h.op}
	for _, f := range h.fields {
		m.Params = append(m.Params, accp.Param{Key: f.name, Value: f.value})
	}
	if h.rows != nil {
		var err error
		m.Params, err = profile.TableOf(h.rows)
		require.NoError(t, err)
	}
	_, err := s.Send(t.Context(), m)
	require.NoError(t, err)
}

// measureRun generates a run and measures it. After each hop, it asks for a few facts, and checks that each history answers
// all, and that the contexts of the session answer the same ones in each notation.
func measureRun(t testing.TB, seed int) *runResult {
	registry := accp.NewRegistry()
	require.NoError(t, registry.Register(profile.TableSchema()))
	codec := &accp.Codec{Registry: registry}
	g := &generator{Rand: rand.New(rand.NewPCG(uint64(seed), 61))}
	whole, session := newRunSession(t, registry), newRunSession(t, registry)
	whole.ModelContext(1<<30, 1<<29)
	session.ModelContext(runMaximum, runKeep)
	r := &runResult{hops: 5 + 55*seed/(generatedRuns-1)}
	histories, views := make([]meter, len(notations)), make([]meter, len(notations))
	lines := make([][]string, len(notations)) // of the histories
	hops := map[string]*hop{}                 // by their lines
	facts := map[string]string{}              // the newest
	var names []string
	factsOfHistory := make([]map[string]string, len(notations)) // what the histories state
	for n := range notations {
		factsOfHistory[n] = map[string]string{}
	}
	for len(lines[0]) < r.hops {
		h := g.hop()
		h.send(t, whole, g.state)
		all := whole.ModelContext(1<<30, 1<<29).Lines
		if len(all) == len(lines[0]) {
			continue // the state is as before
		}
		line := all[len(all)-1]
		h.send(t, session, g.state)
		h.write(t, codec, line)
		hops[line] = h
		for _, f := range h.members[isACCP] {
			if _, ok := facts[f.name]; !ok {
				names = append(names, f.name)
			}
			facts[f.name] = f.value
		}
		for n := range notations {
			lines[n] = append(lines[n], h.texts[n])
			histories[n].add(slices.Clone(lines[n]))
			for _, f := range h.members[n] {
				factsOfHistory[n][f.name] = f.value
			}
		}
		current := session.ModelContext(runMaximum, runKeep).Lines
		contexts := make([][]string, len(notations))
		factsOfView := make([]map[string]string, len(notations))
		for n := range notations {
			factsOfView[n] = map[string]string{}
			for _, text := range current {
				var members []member
				if origin := hops[text]; origin != nil {
					text, members = origin.texts[n], origin.members[n]
				} else {
					members = readSummary(t, codec, text)
				}
				contexts[n] = append(contexts[n], text)
				for _, f := range members {
					factsOfView[n][f.name] = f.value
				}
			}
			views[n].add(contexts[n])
		}
		require.Equal(t, current, contexts[isACCP])
		for range 5 {
			question := pick(g.Rand, names...)
			answer := factsOfView[isACCP][question]
			for n, notation := range notations {
				if notation == "prose" && strings.HasSuffix(question, ".id") {
					continue // the number of the row names the invoice
				}
				require.Equal(t, facts[question], factsOfHistory[n][question], "seed %d: the history in %s: %s", seed, notation, question)
				require.Equal(t, answer, factsOfView[n][question], "seed %d: the context in %s: %s", seed, notation, question)
			}
			r.questions++
			if answer == facts[question] {
				r.answers++
			}
		}
	}
	for n := range notations {
		r.history, r.view = append(r.history, histories[n].bill), append(r.view, views[n].bill)
	}
	return r
}

var runs struct { // one measurement for all tests
	sync.Once
	results []*runResult
}

func measuredRuns(t testing.TB) []*runResult {
	runs.Do(func() {
		results := make([]*runResult, generatedRuns)
		for seed := range results {
			results[seed] = measureRun(t, seed)
		}
		runs.results = results
	})
	require.NotNil(t, runs.results, "the measurement failed")
	return runs.results
}

func quantile(of []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[int(math.Round(q*float64(len(sorted)-1)))]
}

// ratios returns a ratio of each run.
func ratios(t testing.TB, of func(*runResult) float64) (out []float64) {
	for _, r := range measuredRuns(t) {
		out = append(out, of(r))
	}
	return out
}

// runTable returns the median cost of the runs by notation.
func runTable(t testing.TB) string {
	rows := [][]string{{"median of the runs", "whole history: tokens", "cost with caching", "summaries and hops since: tokens", "cost with caching", "cost under JSON"}}
	for n, notation := range notations {
		median := func(of func(*runResult) float64) float64 { return quantile(ratios(t, of), 0.5) }
		row := []string{notation}
		for _, of := range []func(*runResult) float64{
			func(r *runResult) float64 { return r.history[n].tokens }, func(r *runResult) float64 { return r.history[n].cached },
			func(r *runResult) float64 { return r.view[n].tokens }, func(r *runResult) float64 { return r.view[n].cached },
		} {
			row = append(row, fmt.Sprintf("%.0f", median(of)))
		}
		rows = append(rows, append(row, fmt.Sprintf("%.2f", median(func(r *runResult) float64 { return r.view[n].cached / r.view[isJSON].cached }))))
	}
	return table(rows...)
}

// ratioTable is the distribution of the cost of ACCP relative to JSON.
func ratioTable(t testing.TB) string {
	rows := [][]string{{"ACCP relative to compact JSON", "lowest", "lower quartile", "median", "upper quartile", "highest", "runs above 1"}}
	for _, x := range []struct {
		what string
		of   func(*runResult) float64
	}{
		{"whole history, tokens", func(r *runResult) float64 { return r.history[isACCP].tokens / r.history[isJSON].tokens }},
		{"whole history, cost with caching", func(r *runResult) float64 { return r.history[isACCP].cached / r.history[isJSON].cached }},
		{"summaries and hops since, tokens", func(r *runResult) float64 { return r.view[isACCP].tokens / r.view[isJSON].tokens }},
		{"summaries and hops since, cost with caching", (*runResult).ratio},
		{"the same, against the whole history in JSON", func(r *runResult) float64 { return r.view[isACCP].cached / r.history[isJSON].cached }},
	} {
		list := ratios(t, x.of)
		row := []string{x.what}
		for _, q := range []float64{0, 0.25, 0.5, 0.75, 1} {
			row = append(row, fmt.Sprintf("%.2f", quantile(list, q)))
		}
		var above []string
		for seed, ratio := range list {
			if ratio > 1 {
				above = append(above, fmt.Sprintf("%d (%.2f)", seed, ratio))
			}
		}
		which := "none"
		if len(above) > 8 {
			which = fmt.Sprintf("%d of %d", len(above), len(list))
		} else if above != nil {
			which = "seeds " + strings.Join(above, ", ")
		}
		rows = append(rows, append(row, which))
	}
	return table(rows...)
}

// Over generated runs, the context of a session costs at most 0.8 of the same context in compact JSON on the median run,
// with the same answers to the same questions.
func TestGeneratedRuns(t *testing.T) {
	if race.Enabled {
		t.Skip("one goroutine computes for a long time")
	}
	questions, answers, shortest, longest := 0, 0, math.MaxInt, 0
	for _, r := range measuredRuns(t) {
		questions, answers, shortest, longest = questions+r.questions, answers+r.answers, min(shortest, r.hops), max(longest, r.hops)
	}
	t.Logf("%d to %d hops, %d questions, the contexts of sessions answer %d\n%s\n%s", shortest, longest, questions, answers, runTable(t), ratioTable(t))
	require.Equal(t, []int{5, 60}, []int{shortest, longest})
	require.LessOrEqual(t, quantile(ratios(t, (*runResult).ratio), 0.5), 0.8)
}
