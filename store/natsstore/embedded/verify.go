// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package embedded

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/minio/highwayhash"

	"github.com/fivewire/fivewire/store/natsstore"
)

// cleanFile exists while the last server in the folder has ended in order.
const cleanFile = "fivewire.clean"

// markSuffix ends the name of the file of a high-water mark, after the prefix of the streams.
const markSuffix = ".mark"

// Verify compares all messages in the folder of a server with their checksums, and the last numbers with the
// high-water marks. No server may use the folder. An incomplete message at the end of a stream is damage only if the
// server ended in order: else it was never acknowledged.
func Verify(dir string) (*natsstore.Report, error) {
	r, err := verifyBlocks(dir)
	if err != nil {
		return nil, err
	}
	marks, err := filepath.Glob(filepath.Join(r.Path, "*"+markSuffix))
	if len(marks) == 0 {
		// An empty report would call any other folder whole.
		if _, err := os.Stat(filepath.Join(r.Path, "jetstream")); err != nil {
			return nil, fmt.Errorf("embedded: verify: no folder of a server: %w", err)
		}
	}
	for _, mark := range marks {
		r.CompareMark(mark, strings.TrimSuffix(filepath.Base(mark), markSuffix))
	}
	r.Checked = time.Now()
	return r, err
}

// A verifier verifies the blocks of a folder.
type verifier struct{ *natsstore.Report }

func verifyBlocks(dir string) (*natsstore.Report, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("embedded: verify: %w", err)
	}
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("embedded: verify: %w", err)
	}
	r := verifier{&natsstore.Report{Path: dir}}
	_, err = os.Stat(filepath.Join(dir, cleanFile))
	isClean := err == nil
	metas, err := filepath.Glob(filepath.Join(dir, "jetstream", "*", "streams", "*", "meta.inf"))
	if err != nil {
		return nil, fmt.Errorf("embedded: verify %s: %w", dir, err)
	}
	for _, meta := range metas {
		if err := r.stream(filepath.Dir(meta), isClean); err != nil {
			return nil, fmt.Errorf("embedded: verify %s: %w", dir, err)
		}
	}
	return r.Report, nil
}

// stream verifies the blocks of one stream.
func (r verifier) stream(folder string, isClean bool) error {
	name := filepath.Base(folder)
	data, err := os.ReadFile(filepath.Join(folder, "meta.inf"))
	if err != nil {
		return err
	}
	var meta struct{ Name string }
	if err := json.Unmarshal(data, &meta); err != nil || meta.Name != name {
		r.Add(natsstore.Damage{Area: filepath.Join(folder, "meta.inf"), Problem: "no definition of a stream"})
	}
	blocks, err := filepath.Glob(filepath.Join(folder, "msgs", "*.blk"))
	if err != nil {
		return err
	}
	slices.SortFunc(blocks, func(a, b string) int { return cmp.Compare(blockNumber(a), blockNumber(b)) })
	for i, block := range blocks {
		data, err := os.ReadFile(block)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := r.block(name, block, data, isClean || i < len(blocks)-1); err != nil {
			return err
		}
	}
	return nil
}

func blockNumber(path string) int {
	n, _ := strconv.Atoi(strings.TrimSuffix(filepath.Base(path), ".blk"))
	return n
}

// Lengths of the parts of a message in a block: length, number, time and length of the subject
// precede the subject; the checksum is last.
const (
	blockHeader   = 4 + 8 + 8 + 2
	blockChecksum = 8
	hasHeaders    = 1 << 31
	seqFlags      = 3 << 62 // erased, and a mark of a removed message
)

// block verifies the messages of a block.
func (r verifier) block(stream, path string, data []byte, isWhole bool) error {
	r.Blocks++
	if bytes.HasPrefix(data, []byte("cmp")) {
		r.Skipped = append(r.Skipped, path)
		return nil
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%s-%d", stream, blockNumber(path)))
	hash, err := highwayhash.New64(key[:])
	if err != nil {
		return err
	}
	for at := 0; at < len(data); {
		m := data[at:]
		var length, subject int
		isComplete := len(m) >= blockHeader
		if isComplete {
			length = int(binary.LittleEndian.Uint32(m) &^ hasHeaders)
			subject = int(binary.LittleEndian.Uint16(m[20:]))
			isComplete = length <= len(m)
		}
		if !isComplete || length < blockHeader+subject+blockChecksum {
			if isWhole || isComplete {
				r.Add(natsstore.Damage{Area: path, Offset: at, Problem: "message is incomplete"})
			}
			return nil
		}
		d := natsstore.Damage{Area: path, Offset: at, Position: binary.LittleEndian.Uint64(m[4:]) &^ seqFlags}
		r.Count(stream, string(m[blockHeader:blockHeader+subject]), d.Position)
		rest := m[blockHeader+subject : length-blockChecksum]
		if binary.LittleEndian.Uint32(m)&hasHeaders != 0 {
			if len(rest) < 4 {
				d.Problem = "message is incomplete"
			} else {
				n := int(binary.LittleEndian.Uint32(rest))
				rest = rest[4:]
				// The server's checksum does not cover this length.
				if n > len(rest) || !bytes.HasSuffix(rest[:n], []byte("\r\n\r\n")) {
					d.Problem = "length of headers"
				}
			}
		}
		hash.Reset()
		for _, part := range [][]byte{m[4:20], m[blockHeader : blockHeader+subject], rest} {
			_, _ = hash.Write(part) // it never fails
		}
		if !bytes.Equal(hash.Sum(nil), m[length-blockChecksum:length]) {
			d.Problem = "checksum does not match"
		}
		if d.Problem != "" {
			r.Add(d)
		}
		at += length
	}
	return nil
}

// verifyFolder refuses a damaged folder before a server uses it: the server would omit messages that
// it cannot read.
func verifyFolder(dir string) error {
	r, err := verifyBlocks(dir)
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(dir, cleanFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
