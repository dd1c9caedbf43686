"""Rank 0 asks a server that generates, and answers slowly; nothing of this job works meanwhile."""

import subprocess
import sys
import urllib.request

from _training import PAUSE_AT, STEPS, end, pause_s, start, train

import holdfast

SERVER = """
import http.server, sys, time
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(float(sys.argv[1]))
        self.send_response(200); self.end_headers(); self.wfile.write(b"0.5")
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
print(server.server_port, flush=True)
server.handle_request()
"""

rank, model, optimizer = start()
run = holdfast.guard(model=model, optimizer=optimizer)
for step in run.steps(STEPS):
    train(model, optimizer, step)
    if step == PAUSE_AT and rank == 0:
        with subprocess.Popen([sys.executable, "-c", SERVER, str(pause_s(60))], stdout=subprocess.PIPE, text=True) as server:
            port = int(server.stdout.readline())
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/score") as answer:
                print("score", answer.read().decode(), flush=True)
end(model)
