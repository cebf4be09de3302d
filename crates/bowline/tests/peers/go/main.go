// A server over stdio as Go programs write them: plain structs, plain encoding/json. Member names
// are matched without regard to case, and of several the last one counts.
//
// The first argument names a file. Each request that this server acts on is a line there: the
// method, a tab, and what the server took it to mean.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

type request struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Method  string          `json:"method"`
	Params  params          `json:"params"`
}

type params struct {
	Name      string `json:"name"`
	URI       string `json:"uri"`
	TaskID    string `json:"taskId"`
	Level     string `json:"level"`
	Cursor    string `json:"cursor"`
	Arguments struct {
		Path string `json:"path"`
	} `json:"arguments"`
	Ref struct {
		Type string `json:"type"`
		Name string `json:"name"`
		URI  string `json:"uri"`
	} `json:"ref"`
	Argument struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"argument"`
	Meta struct {
		Key string `json:"dev.bowline/idempotencyKey"`
	} `json:"_meta"`
}

type object = map[string]interface{}

const schema = `{"type":"object","properties":{"path":{"type":"string"}}}`

func tool(name string) object {
	return object{"name": name, "inputSchema": json.RawMessage(schema)}
}

func text(words string) object {
	return object{"type": "text", "text": words}
}

// Returns what a request means here, and its result.
func answer(r request) (string, object) {
	p := r.Params
	switch r.Method {
	case "initialize":
		return "", object{
			"protocolVersion": "2025-11-25",
			"serverInfo":      object{"name": "go", "version": "1"},
			"capabilities": object{
				"tools": object{}, "prompts": object{}, "completions": object{}, "logging": object{},
				"resources": object{"subscribe": true},
			},
		}
	case "ping":
		return "", object{}
	case "tools/list":
		return "", object{"tools": []object{tool("read_file"), tool("delete_all")}}
	case "prompts/list":
		return "", object{"prompts": []object{{"name": "hello"}, {"name": "admin"}}}
	case "resources/list":
		return "", object{"resources": []object{
			{"uri": "note:///open", "name": "open"}, {"uri": "note:///secret", "name": "secret"},
		}}
	case "resources/templates/list":
		return "", object{"resourceTemplates": []object{}}
	case "tools/call":
		meaning := p.Name + " " + p.Arguments.Path + " " + p.Meta.Key
		return meaning, object{"content": []object{text("RAN " + meaning)}}
	case "prompts/get":
		message := object{"role": "user", "content": text("PROMPT " + p.Name)}
		return p.Name, object{"messages": []object{message}}
	case "resources/read":
		return p.URI, object{"contents": []object{{"uri": p.URI, "text": "READ " + p.URI}}}
	case "resources/subscribe", "resources/unsubscribe":
		return p.URI, object{}
	case "completion/complete":
		meaning := p.Ref.Type + " " + p.Ref.Name + p.Ref.URI + " " + p.Argument.Name + "=" + p.Argument.Value
		return meaning, object{"completion": object{"values": []string{meaning}}}
	case "logging/setLevel":
		return p.Level, object{}
	}
	return "", nil
}

func main() {
	log, err := os.OpenFile(os.Args[1], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var r request
		if json.Unmarshal(lines.Bytes(), &r) != nil || len(r.ID) == 0 {
			continue
		}
		meaning, result := answer(r)
		if meaning != "" {
			fmt.Fprintf(log, "%s\t%s\n", r.Method, meaning)
		}
		if result == nil {
			refusal := object{"code": -32601, "message": "not here"}
			out.Encode(object{"jsonrpc": "2.0", "id": r.ID, "error": refusal})
			continue
		}
		out.Encode(object{"jsonrpc": "2.0", "id": r.ID, "result": result})
	}
}
