"""The page and the HTTP API of `aoq serve`.

`app` joins the `routes` with the page in `static/`; `run_api` answers for one run in the terms of
`schemas`. `security`, `limits`, `uploads` and `worker_pool` bound what visitors can ask for, and
`server` owns the socket.
"""
