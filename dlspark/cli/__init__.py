"""The command line: a module for each word behind `dlspark`, called as that word is.

main               all commands; __main__: the process, its signals and its status
logs, log_contents, inspections    `dlspark log ...`: whole logs, what is in one, what is wrong with one
pipes              `dlspark write` and `dlspark read`; record_forms: how records stand there; input_blocks: the input
common, positions  what commands share: options, questions, tables; a position as it is typed
doctor, doctor_checks    `dlspark doctor`, and what it looks at
reference, settings_pages, settings_texts    pages of docs/ and conf/ that are made from the code
"""
