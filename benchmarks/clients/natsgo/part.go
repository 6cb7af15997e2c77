package main

import (
	"bufio"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const ticks = 100 // a second, in /proc on Linux

// Part is one of the two parts of a run, with the clock that measures it.
type Part struct {
	count     int
	consumer  string
	last      int // stream sequence of the last message
	server    int // process of the server, or 0
	latencies []time.Duration
	began     time.Time
	used      time.Duration
	serverUse float64
	baseMB    float64
	figures   *Figures
}

// Figures is what one part reports.
type Figures struct {
	Moved   int      `json:"moved"`
	Last    uint64   `json:"last"`
	Count   int      `json:"count"`
	Seconds float64  `json:"seconds"`
	Rate    float64  `json:"rate"`
	CPU     float64  `json:"cpu_us"`
	Server  *float64 `json:"server_us,omitempty"`
	BaseMB  float64  `json:"base_mb"`
	RSSMB   float64  `json:"rss_mb"`
	P50     *float64 `json:"p50_us,omitempty"`
	P99     *float64 `json:"p99_us,omitempty"`
}

// start is the stream sequence of the first message.
func (part *Part) start() uint64 {
	return uint64(part.last - part.count + 1)
}

// time adds the latency of one message that began at a time.
func (part *Part) time(began time.Time) {
	part.latencies = append(part.latencies, time.Since(began))
}

func (part *Part) begin() {
	part.baseMB, _ = memory()
	part.serverUse = cpuOf(part.server)
	part.began, part.used = time.Now(), cpu()
}

// done stops the clock: so many messages were moved, up to this stream sequence.
func (part *Part) done(moved int, last uint64) {
	elapsed, used := time.Since(part.began).Seconds(), cpu()-part.used
	_, peak := memory()
	part.figures = &Figures{
		Moved:   moved,
		Last:    last,
		Count:   moved,
		Seconds: elapsed,
		Rate:    float64(moved) / elapsed,
		CPU:     used.Seconds() / float64(moved) * 1e6,
		BaseMB:  part.baseMB,
		RSSMB:   peak,
	}
	if part.server != 0 {
		micros := (cpuOf(part.server) - part.serverUse) / float64(moved) * 1e6
		part.figures.Server = &micros
	}
	if len(part.latencies) > 0 {
		slices.Sort(part.latencies)
		part.figures.P50 = part.quantile(0.5)
		part.figures.P99 = part.quantile(0.99)
	}
}

// quantile returns the nearest rank in the sorted latencies, in microseconds.
func (part *Part) quantile(fraction float64) *float64 {
	rank := int(math.Ceil(fraction*float64(len(part.latencies)))) - 1
	value := float64(part.latencies[max(0, rank)]) / float64(time.Microsecond)
	return &value
}

// cpu is the user and system time of this process.
func cpu() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		fail(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// cpuOf returns the seconds of user and system time of another process, 0 where there is no /proc.
func cpuOf(pid int) float64 {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	// The name of the process, in parentheses, may contain spaces.
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return (user + system) / ticks
}

// memory returns the resident megabytes of this process: now, and at most so far. Both are 0 where there is no /proc.
func memory() (now, peak float64) {
	file, err := os.Open("/proc/self/status")
	if err != nil {
		return 0, 0
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		kilobytes, _ := strconv.ParseFloat(fields[1], 64)
		switch fields[0] {
		case "VmRSS:":
			now = kilobytes / 1024
		case "VmHWM:":
			peak = kilobytes / 1024
		}
	}
	return now, peak
}
