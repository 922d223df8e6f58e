// Samecode checks that a change is to comments only:
//
//	go run ./scripts/samecode BASE
//
// names the Go files of the work tree whose code differs from that in the commit BASE, and fails if
// there are any. It is run at the top of the repository. Comments that compilers and tools read
// count as code: directives (build constraints among them), cgo preambles, and the output of
// examples. It looks at Go files only.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	flag.Usage = func() { fmt.Fprintln(os.Stderr, "usage: go run ./scripts/samecode BASE") }
	if flag.Parse(); flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	switch files, err := differing(flag.Arg(0)); {
	case err != nil:
		fmt.Fprintln(os.Stderr, "samecode:", err)
		os.Exit(2)
	case len(files) > 0:
		fmt.Println("other code than at", flag.Arg(0)+":")
		fmt.Println(strings.Join(files, "\n"))
		os.Exit(1)
	}
}

// differing lists the files whose code differs from that at base, including files that are new or
// gone.
func differing(base string) (files []string, err error) {
	// Each name ends with a zero, whatever is in it.
	list, err := git("diff", "--name-only", "--no-renames", "-z", base, "--", "*.go")
	if err != nil {
		return nil, err
	}
	added, err := git("ls-files", "--others", "--exclude-standard", "-z", "--", "*.go")
	if err != nil {
		return nil, err
	}
	for name := range strings.FieldsFuncSeq(string(list)+string(added), func(r rune) bool { return r == 0 }) {
		after, err := os.ReadFile(filepath.FromSlash(name))
		if errors.Is(err, fs.ErrNotExist) {
			after, err = nil, nil
		}
		if err != nil {
			return nil, err
		}
		before, err := git("show", base+":"+name)
		if err != nil || !slices.Equal(code(before), code(after)) {
			files = append(files, name)
		}
	}
	return files, nil
}

func git(args ...string) ([]byte, error) {
	out, err := exec.Command("git", args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("git %s: %s", strings.Join(args, " "), bytes.TrimSpace(exit.Stderr))
	}
	return out, err
}

var (
	// directive matches comments to compilers and linters.
	directive = regexp.MustCompile(`^//(?:[a-z]+:|export |line |extern |\s*\+build )`)
	output    = regexp.MustCompile(`(?i)^//\s*(?:unordered )?output:`)
	importsC  = regexp.MustCompile(`(?m)^import "C"`)
)

// code returns what is left of a file without the comments that only people read.
func code(text []byte) (tokens []string) {
	var s scanner.Scanner
	set := token.NewFileSet()
	file := set.AddFile("", -1, len(text))
	s.Init(file, text, nil, scanner.ScanComments)
	preamble := 0 // where it ends
	if at := importsC.FindIndex(text); at != nil {
		preamble = at[0]
	}
	inOutput, line := false, 0
	for {
		pos, tok, literal := s.Scan()
		switch {
		case tok == token.EOF:
			return tokens
		case tok == token.SEMICOLON && literal == "\n": // a comment may change where it is
			tokens = append(tokens, ";")
		case tok != token.COMMENT:
			inOutput = false
			tokens = append(tokens, tok.String()+" "+literal)
		default:
			// Output goes on from line to line.
			at := file.Line(pos)
			inOutput = output.MatchString(literal) || inOutput && at == line+1
			line = at
			isPreamble := file.Offset(pos) < preamble
			if inOutput || isPreamble || directive.MatchString(literal) {
				tokens = append(tokens, literal)
			}
		}
	}
}
