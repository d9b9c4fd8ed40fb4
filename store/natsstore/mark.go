// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/fivewire/fivewire/store"
)

const (
	// sumHeader has the CRC32C of subject, the store's other headers and value, in hexadecimal.
	// Number and time are given by the server, whose own checksum covers them.
	sumHeader = "Fivewire-Sum"

	headerPrefix = "Fivewire-"

	markLag = 100 * time.Millisecond

	// A loss is seen so many times, with so much time between, before it counts.
	lossLooks = 5
	lossPause = 500 * time.Millisecond

	// lossMargin is how many numbers are skipped after an accepted loss, beyond those of the mark.
	lossMargin = 2000
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func sumOf(subject string, header nats.Header, value []byte) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%q", subject)
	for _, name := range slices.Sorted(maps.Keys(header)) {
		if strings.HasPrefix(name, headerPrefix) && name != sumHeader {
			fmt.Fprintf(&b, "%q%q", name, header[name])
		}
	}
	sum := crc32.Update(crc32.Checksum(b.Bytes(), castagnoli), castagnoli, value)
	return strconv.FormatUint(uint64(sum), 16)
}

// check compares a message with its checksum. Messages of earlier versions have none.
func (m *stored) check(a *area) error {
	want, ok := m.header[sumHeader]
	if !ok || len(want) == 1 && want[0] == sumOf(m.subject, m.header, m.value) {
		return nil
	}
	return &store.CorruptError{Path: a.name, Position: m.seq, Cause: fmt.Errorf("subject %s", m.subject)}
}

// note records that a number was given.
func (a *area) note(seq uint64) {
	for {
		old := a.highest.Load()
		if seq <= old || a.highest.CompareAndSwap(old, seq) {
			return
		}
	}
}

// A markFile is the JSON form of a high-water mark.
type markFile struct {
	Entries uint64 `json:"entries"` // highest revision
	Records uint64 `json:"records"` // highest position
	Sum     uint32 `json:"sum"`
}

func (m markFile) sum() uint32 {
	return crc32.Checksum(fmt.Appendf(nil, "%d %d", m.Entries, m.Records), castagnoli)
}

func readMark(path string) (m markFile, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return markFile{}, nil
	}
	if err != nil {
		return markFile{}, err
	}
	if err := json.Unmarshal(data, &m); err != nil || m.Sum != m.sum() {
		return markFile{}, &store.CorruptError{Path: path, Cause: errors.New("no valid mark")}
	}
	return m, nil
}

// compareMark compares the ends of both areas with the mark, and asks the servers whether they omitted
// damaged messages.
func (s *Store) compareMark(ctx context.Context) error {
	var mark markFile
	if s.opts.MarkFile != "" {
		path, err := filepath.Abs(s.opts.MarkFile) // the program may change its directory
		if err != nil {
			return err
		}
		s.opts.MarkFile = path
		if mark, err = readMark(path); err != nil && !s.opts.AcceptLoss {
			return err
		}
	}
	for _, area := range []struct {
		*area
		want uint64
	}{{s.kv, mark.Entries}, {s.log, mark.Records}} {
		info, err := s.info(ctx, area.area, "", 0)
		if err != nil {
			return err
		}
		err = nil
		switch {
		case info.lastSeq < area.want:
			err = &store.LossError{Path: area.name, Have: info.lastSeq, Want: area.want}
		case info.lost > 0:
			err = &store.CorruptError{Path: area.name, Cause: fmt.Errorf("the server omitted %d damaged bytes", info.lost)}
		}
		area.note(info.lastSeq)
		if err == nil {
			continue
		}
		if !s.opts.AcceptLoss {
			return err
		}
		s.opts.Logger.WarnContext(ctx, "natsstore: loss of data accepted", "err", err)
		if err := s.skip(ctx, area.area, max(info.lastSeq, area.want)+lossMargin); err != nil {
			return err
		}
	}
	return nil
}

// checkEnds compares the last numbers of both areas with those that this process read or stored. A new leader of a
// cluster may be behind at first, so the server has to be behind several times in a row.
func (s *Store) checkEnds(ctx context.Context) error {
	for _, a := range []*area{s.kv, s.log} {
		want := a.highest.Load()
		for n := 1; ; n++ {
			info, err := s.info(ctx, a, "", 0)
			var loss error
			switch {
			case hasCode(err, codeNoStream):
				loss = &store.CorruptError{Path: a.name, Cause: err}
			case err != nil:
				return err
			case info.lastSeq < want:
				loss = &store.LossError{Path: a.name, Have: info.lastSeq, Want: want}
			}
			if loss == nil {
				break
			}
			if n == lossLooks {
				return s.lose(loss)
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(lossPause):
			}
		}
	}
	return nil
}

// lose makes all waiting and all later calls return a loss.
func (s *Store) lose(loss error) error {
	if s.lost.CompareAndSwap(nil, &loss) {
		s.opts.Logger.ErrorContext(s.life, "natsstore: data lost", "err", loss)
		s.wakes.ringAll()
	}
	return loss
}

// skip stores messages that replace each other until the number last is used.
func (s *Store) skip(ctx context.Context, a *area, last uint64) error {
	for {
		seq, err := s.publish(ctx, a, a.prefix+"skip", nats.Header{rollupHeader: {"sub"}}, nil, condition{})
		if err != nil {
			return err
		}
		if seq >= last {
			return nil
		}
		for range min(last-seq-1, 1000) {
			if err := s.nc.PublishMsg(&nats.Msg{Subject: a.prefix + "skip", Header: nats.Header{rollupHeader: {"sub"}}}); err != nil {
				return err
			}
		}
	}
}

// keepMark writes the mark a little later than the numbers are given, until Close.
func (s *Store) keepMark() {
	tick := time.NewTicker(markLag)
	defer tick.Stop()
	var written markFile
	for isClosed := false; !isClosed; {
		select {
		case <-tick.C:
		case <-s.life.Done():
			isClosed = true
		}
		m := markFile{Entries: s.kv.highest.Load(), Records: s.log.highest.Load()}
		if m.Sum = m.sum(); m == written {
			continue
		}
		if err := m.write(s.opts.MarkFile); err != nil {
			s.opts.Logger.WarnContext(s.life, "natsstore: high-water mark not written", "err", err)
			continue
		}
		written = m
	}
}

// write replaces the file. The new file is synced before the rename.
func (m markFile) write(path string) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".mark-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
